"""The pictures of the stories are drawn from what their blocks leave, and the stories say what their data say."""

import math
import re
import statistics

from scripts import FOLDER

from torchdp.simulate.report import read_table


def test_the_story_of_training_says_the_means_of_its_own_runs():
    docs = FOLDER.parent / "docs"
    rows = read_table(docs / "pictures/accuracy.csv")
    story = " ".join((docs / "story_training.md").read_text().split())
    for plan, said in (("DP-SGD", "for DP-SGD"), ("best", "for the best plan"), ("no noise", "without noise")):
        runs = [row["accuracy"] for row in rows if row["plan"] == plan]
        mean, error = 100 * statistics.mean(runs), 100 * statistics.stdev(runs) / math.sqrt(len(runs))
        words = re.search(rf"({mean:.1f}) \+- ({error:.1f}) % {said}", story)
        assert words, (said, mean, error)
