"""The pictures of the three stories in docs/: what their own blocks computed, drawn.

Command:  python experiments/stories/pictures.py --out docs/pictures
Expected: survey: the 95 % intervals hold nearly all of the truth; errors fall as one over the root
of the people asked.
    federated: at epsilon = 1 the map is that of the truth, at 0.1 noise is seen. training: the
    error of the best plan is less from the eighth step on (epsilon = 2; from the sixth at 8); mean
    test accuracies over ten runs at epsilon = 8 are 92.3 % (DP-SGD), 92.9 % (best), 94.2 %
    (no noise); single runs of both plans overlap.
Output: survey.csv, federated.csv, training.csv, accuracy.csv and a .png of each story.
Artifact: our own | pictures of the stories
Status: agrees
Time: three minutes on one core; --smoke, the survey alone, in ten.
    On the CPU, whatever --device says.
"""

import contextlib
import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchdp import training
from torchdp.simulate import Experiment, columns, subplots
from torchdp.threads import on_host

HERE = Path(__file__).resolve()
DOCS = HERE.parents[2] / "docs"
COLOURS = {"DP-SGD": "#D55E00", "best": "#0072B2", "no noise": "#009E73"}


@dataclass(frozen=True)
class Config:
    stories: tuple[str, ...] = ("survey", "federated", "training")
    seeds: int = 10  # runs of each plan


def told(story):
    """The names that a story's blocks leave, run in an empty folder."""
    names = {"__name__": "__main__"}
    text = (DOCS / f"story_{story}.md").read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        # a story writes files
        with contextlib.chdir(folder):
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                exec(compile(block, story, "exec"), names)
    return names


def survey(config, report):
    story = told("survey")
    protocol = story["protocol"]
    whole = story["whole"]
    low, high = whole.interval(0.95)
    truth = protocol.exact(protocol.summary(story["step"]))
    for at, value in enumerate(whole.value):
        ends = {"low": low[at], "high": high[at]}
        report.row("survey", score=25 * (at + 1), truth=truth[at], private=value, **ends)
    for n, error in story["plan"].items():
        report.row("plan", people=n, error=error)


def federated(config, report):
    story = told("federated")
    maps = {
        epsilon: released.evaluate(story["grid"]) for epsilon, released in story["maps"].items()
    }
    for at, (x, y) in enumerate(story["grid"].tolist()):
        private = {f"epsilon_{epsilon}": values[at] for epsilon, values in maps.items()}
        report.row("federated", x=x, y=y, truth=story["truth"][at], **private)


def learning(config, report):
    story = told("training")
    for epsilon in (2.0, 8.0):
        choice = training.choose(
            story["W"], story["people"], story["batch"], epsilon=epsilon, delta=1e-5
        )
        plans = {one.name: one.protocol for one in choice.candidates}
        for name, plan in (("DP-SGD", plans["Poisson, independent noise"]), ("best", choice.best)):
            for step, error in enumerate(plan.standard_errors.tolist(), 1):
                report.row("training", epsilon=epsilon, plan=name, step=step, error=error)
    for seed in range(config.seeds):
        for name, plan in (("DP-SGD", story["plain"]), ("best", story["best"])):
            report.row("accuracy", plan=name, accuracy=story["trained"](plan, seed)[0])
        report.row("accuracy", plan="no noise", accuracy=unprotected(story, seed))


def unprotected(story: dict[str, Any], seed):
    """The same model, batches of the same size, no clipping and no noise."""
    x = story["x"]
    y = story["y"]
    people = story["people"]
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    for _ in range(story["steps"]):
        users = torch.randint(people, (story["batch"],))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[users]), y[users])
        loss.backward()
        optimizer.step()
    # who does not train is for testing
    predicted = model(x[people:]).argmax(1)
    return float((predicted == y[people:]).double().mean())


STORIES = {"survey": survey, "federated": federated, "training": learning}


@on_host
def measure(config, report):
    torch.set_num_threads(1)
    for story in config.stories:
        STORIES[story](config, report)


def draw(tables):
    found = {}
    if "survey" in tables:
        found["survey.png"] = drawn_survey(tables)
    if "federated" in tables:
        found["federated.png"] = drawn_maps(tables["federated"])
    if "training" in tables:
        found["training.png"] = drawn_training(tables)
    return found


def drawn_survey(tables):
    figure, (left, right) = subplots(2, size=(5, 3.6))
    score, truth, private, low, high = columns(
        tables["survey"], "score", "truth", "private", "low", "high"
    )
    left.fill_between(
        score, low, high, color="#0072B2", alpha=0.25, linewidth=0, label="95 % intervals"
    )
    left.plot(
        score,
        private,
        "o-",
        color="#0072B2",
        markersize=4,
        label="private, epsilon = 2, local model",
    )
    left.plot(score, truth, "--", color="black", label="truth")
    left.set(xlabel="score", ylabel="share of people at or below", title="20,000 people")
    left.legend(frameon=False)
    people, error = columns(tables["plan"], "people", "error")
    right.loglog(people, error, "o-", color="#D55E00")
    right.set(
        xlabel="people asked", ylabel="error of the worst step", title="error predicted in advance"
    )
    right.grid(alpha=0.3, which="both")
    return figure


def drawn_maps(rows):
    names = {"truth": "truth", "epsilon_1.0": "epsilon = 1", "epsilon_0.1": "epsilon = 0.1"}
    figure, axes = subplots(3, size=(3.6, 3.4), wide=3, sharex=True, sharey=True)
    side = round(len(rows) ** 0.5)
    for axis, (name, title) in zip(axes, names.items(), strict=True):
        (values,) = columns(rows, name)
        if name == "truth":
            top = max(values)
        # columns of a picture are x
        pixels = torch.tensor(values).view(side, side).T
        picture = axis.imshow(
            pixels, origin="lower", extent=(-1, 1, -1, 1), vmin=0, vmax=top, cmap="viridis"
        )
        axis.set(title=title, xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    figure.colorbar(picture, ax=axes, label="density", shrink=0.85)
    return figure


def drawn_training(tables):
    figure, (left, right) = subplots(2, size=(5, 3.6))
    for epsilon, style in ((2.0, "-"), (8.0, "--")):
        for name in ("DP-SGD", "best"):
            step, error = columns(tables["training"], "step", "error", plan=name, epsilon=epsilon)
            label = f"{name}, epsilon = {epsilon:g}"
            left.plot(step, error, style, color=COLOURS[name], label=label)
    left.set(
        xlabel="step",
        ylabel="error, clipping bounds",
        title="error that the noise adds to a curved loss",
    )
    left.legend(frameon=False)
    for at, name in enumerate(COLOURS):
        (found,) = columns(tables["accuracy"], "accuracy", plan=name)
        right.plot([at] * len(found), found, "o", color=COLOURS[name], alpha=0.6)
    right.set(
        xticks=range(3),
        xticklabels=list(COLOURS),
        xlim=(-0.5, 2.5),
        ylabel="test accuracy",
        title="epsilon = 8",
    )
    right.grid(alpha=0.3, axis="y")
    return figure


EXPERIMENT = Experiment(measure, Config(), Config(("survey",), 1), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
