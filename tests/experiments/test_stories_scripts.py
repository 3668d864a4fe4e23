"""The pictures of the stories are drawn from what their blocks leave, and the stories say what their data say."""

import csv

from scripts import FOLDER


def test_pictures(smoke):
    found = smoke("stories/pictures.py")
    rows = found.tables["survey"]
    assert len(rows) == 16 and sum(row["low"] <= row["truth"] <= row["high"] for row in rows) >= 13
    assert found.drew("survey.png")
    errors = [row["error"] for row in found.tables["plan"]]
    assert errors == sorted(errors, reverse=True)


def test_the_story_of_training_says_the_means_of_its_own_runs():
    found = {}
    with open(FOLDER.parent / "docs/pictures/accuracy.csv") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["plan"], []).append(float(row["accuracy"]))
    story = " ".join((FOLDER.parent / "docs/story_training.md").read_text().split())
    means = {name: f"{100 * sum(runs) / len(runs):.1f} %" for name, runs in found.items()}
    assert f"DP-SGD has {means['DP-SGD']} in the mean, the best plan {means['best']}" in story
    assert f"training without noise {means['no noise']}." in story
