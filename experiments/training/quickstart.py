"""Differentially private training in fifty lines: four epochs on handwritten digits under certified correlated noise.

Command:  python experiments/training/quickstart.py
Expected: a guarantee of epsilon = 2, delta = 1e-05, and an accuracy on 297 test images of about 0.9 (0.1 by guessing).
    The strategy's error is the least where nothing is gained by sampling. Here Poisson batches with independent noise
    (DP-SGD) err less: 8.7 against 10.2 clipping bounds, root mean square of the prefix sums.
Output: results/training/quickstart/quickstart.csv; "gap" is how far the strategy's error is, relatively, from the
    least without amplification by sampling.
Artifact: Choquette-Choo et al. (2023) | multi-epoch training
Status: agrees
Time: 5 seconds of one core; --smoke the same with one epoch.
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn

from torchdp.factorization import factorize_epochs
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import (
    Batches,
    Epochs,
    calibrated_noise,
    causal_strategy,
    clip_and_sum,
    iterates,
    set_gradients,
)

EPSILON, DELTA, BOUND, BATCH, RATE = 2.0, 1e-5, 1.0, 50, 1.0


@dataclass(frozen=True)
class Config:
    epochs: int = 4


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    generator = keyed_generator(b"split")
    order = torch.randperm(len(images), generator=generator)
    x, y = images[order].float() / 16, labels[order]
    test = slice(1500, None)

    period = 1500 // BATCH  # batches of an epoch, in the same order in every epoch
    batches = Batches(Epochs(period), 1500, BATCH, config.epochs * period, generator=generator)
    W = iterates(len(batches))  # what training releases: all prefix sums of the gradients
    factors = factorize_epochs(W, period)  # without sampling the least largest error of any strategy, within 0.1 %
    model = nn.Sequential(nn.Linear(64, 10))
    noise = calibrated_noise(
        causal_strategy(W, factors),
        size=sum(p.numel() for p in model.parameters()),
        bound=BOUND,
        epsilon=EPSILON,
        delta=DELTA,
        participation=Epochs(period),
        noise=SeededNoise(1),  # so that this script repeats; leave it out for real data
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / BATCH)
    for batch in batches:
        total = clip_and_sum(model, nn.functional.cross_entropy, x[batch], y[batch], BOUND)
        set_gradients(model, noise(total))
        optimizer.step()
    report.say(noise.guarantee(BOUND, DELTA, Epochs(period)))
    accuracy = (model(x[test]).argmax(1) == y[test]).double().mean()
    report.row("quickstart", gap_of_the_strategy=factors.certificate.gap, accuracy=accuracy)


EXPERIMENT = Experiment(measure, Config(), Config(1))

if __name__ == "__main__":
    EXPERIMENT.main()
