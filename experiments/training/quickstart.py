"""Differentially private training in forty lines: four epochs on handwritten digits by the plan of least error.

Command:  python experiments/training/quickstart.py
Expected: the candidates' errors, a guarantee of epsilon = 2, delta = 1e-05, and an accuracy on 297 test images of about
    0.90 (0.1 by guessing). Four bands over sampled batches are first, 16.7, DP-SGD has 19.4, a fixed order with its
    best noise 30.4: what noise adds to curved losses, under momentum .9.
Output: results/training/quickstart/quickstart.csv.
Artifact: Choquette-Choo et al. (2023) | multi-epoch training
Status: agrees
Time: seconds of one core; --smoke one epoch.
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import Descent, choose

USERS, BATCH, RATE, MOMENTUM = 1500, 50, 0.4, 0.9


@dataclass(frozen=True)
class Config:
    epochs: int = 4


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(images), device="cpu", generator=keyed_generator(b"split", "cpu"))
    x, y = images[order].float(), labels[order]
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-9) / 8  # public scales: rows have norm about 1

    steps = config.epochs * USERS // BATCH
    choice = choose(Descent(steps, MOMENTUM), USERS, BATCH, epsilon=2.0, delta=1e-5)
    report.say(choice)
    report.say(choice.best)
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    run = choice.best.start(model, nn.functional.cross_entropy, noise=SeededNoise(1))  # no seed for real data
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for users in run:
        run.backward(x[users], y[users])
        optimizer.step()
    accuracy = (model(x[USERS:]).argmax(1) == y[USERS:]).double().mean()
    report.row("quickstart", error=choice.candidates[0].error, accuracy=accuracy)


EXPERIMENT = Experiment(measure, Config(), Config(1))

if __name__ == "__main__":
    EXPERIMENT.main()
