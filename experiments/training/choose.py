"""Sampling or correlation, and how much of either: every plan's error at one guarantee, and what
training makes of it.

Paper: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), (amplified) banded
matrix factorization.
    Root mean square error of the prefix sums, in clipping bounds, delta = 1e-5; then the accuracy
    of a linear model on two tables of scikit-learn under the chosen plan, under independent noise
    (DP-SGD), under a fixed order, and by Opacus's DP-SGD where it is installed
    (pip install --no-deps opacus opt_einsum), over seeds.
Command:  OMP_NUM_THREADS=1 python experiments/training/choose.py
Expected: more bands of cyclic Poisson sampling the larger epsilon is, and at epsilon 0.5
independent noise within 1 %.
    The choice's error is above DP-SGD's by a hundredth at most. Accuracy: above Opacus's or within
    two standard errors, but for breast cancer at epsilon 8 and 20 epochs, where a fixed order is
    three behind.
Output: results/training/choose/{errors,accuracy}.csv.
Artifact: Choquette-Choo et al. (2023) | amplification by sampling, banded matrices
Status: agrees
Time: half an hour on one core, a third of it Opacus's; --smoke in 10 to 20 CPU-seconds.
"""

import sys
import zlib
from dataclasses import dataclass
from itertools import product

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment
from torchdp.threads import on_host
from torchdp.training import Iterates, choose

DELTA = 1e-5
BATCH = 50  # of the tables


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = ("120,1500,50", "2000,60000,1000")  # steps, users, batch
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    tables: tuple[str, ...] = ("digits", "breast cancer")
    epochs: tuple[int, ...] = (1, 4, 20)
    seeds: int = 20  # every run has draws of its own


def table(name):
    """Columns of mean 0 whose rows have norm about 1, and classes; in a fixed order."""
    load = load_digits if name == "digits" else load_breast_cancer
    x, y = map(torch.tensor, load(return_X_y=True))
    order = torch.randperm(len(x), device="cpu", generator=keyed_generator(b"split", "cpu"))
    x = x.double()[order]
    # public scales, as all methods get them
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-9) / x.shape[1] ** 0.5
    return x.float(), y[order]


def untrained(x, y):
    """A linear model that is 0, and its optimizer."""
    model = nn.Linear(x.shape[1], int(y.max()) + 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model, torch.optim.SGD(model.parameters(), lr=4.0)


def right(model, x, y):
    """Share of the rows whose class the model says."""
    return float((model(x).argmax(1) == y).double().mean())


def accuracy(plan, x, y, seed):
    """On the rows after the users'."""
    model, optimizer = untrained(x, y)
    noise = SeededNoise(zlib.crc32(seed.encode()))
    run = plan.start(model, nn.functional.cross_entropy, noise=noise)
    for users in run:
        run.backward(x[users], y[users])
        optimizer.step()
    return right(model, x[plan.users :], y[plan.users :])


@on_host
def opacus(x, y, users, epsilon, epochs, seed):
    """Opacus's DP-SGD on the same rows and model: Poisson batches, its own accountant."""
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return None
    # whose loader draws on the host
    x = x.cpu()
    y = y.cpu()
    torch.manual_seed(zlib.crc32(seed.encode()))
    model, optimizer = untrained(x, y)
    data = torch.utils.data.TensorDataset(x[:users], y[:users])
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        max_grad_norm=1.0,
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=epochs,
    )
    for _ in range(epochs):
        for rows, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(rows), classes).backward()
            optimizer.step()
    return right(model, x[users:], y[users:])


def compare(config, report, name, epsilon, epochs):
    """Accuracy of the chosen plan, of two others and of Opacus, on one table."""
    x, y = table(name)
    users = len(x) * 4 // 5 // BATCH * BATCH
    seeds = [f"{name} {epsilon} {epochs} {seed}" for seed in range(config.seeds)]

    def row(plan, error, runs):
        runs = torch.tensor(runs)
        report.row(
            "accuracy",
            table=name,
            epsilon=epsilon,
            epochs=epochs,
            plan=plan,
            error=error,
            accuracy=runs.mean(),
            standard_error=runs.std() / len(runs) ** 0.5,
        )

    steps = Iterates(epochs * users // BATCH)
    first, *others = choose(steps, users, BATCH, epsilon=epsilon, delta=DELTA).candidates
    plans = {one.name: one for one in (first, *others)}
    rows = {"chosen: " + first.name: first}
    rows |= {key: plans[key] for key in ("Poisson, independent noise", "fixed order")}
    for key, one in rows.items():
        row(key, one.error, [accuracy(one.protocol, x, y, key + seed) for seed in seeds])
    theirs = [opacus(x, y, users, epsilon, epochs, seed) for seed in seeds]
    if None not in theirs:
        row("Opacus, DP-SGD", None, theirs)


def measure(config, report):
    torch.set_num_threads(1)
    for cell, epsilon in product(config.cells, config.epsilons):
        steps, users, batch = map(int, cell.split(","))
        plans = choose(Iterates(steps), users, batch, epsilon=epsilon, delta=DELTA).candidates
        for one in plans:
            sizes = {"steps": steps, "users": users, "batch": batch}
            report.row("errors", **sizes, epsilon=epsilon, plan=one.name, error=one.error)
    for name, epsilon, epochs in product(config.tables, config.epsilons, config.epochs):
        compare(config, report, name, epsilon, epochs)


EXPERIMENT = Experiment(
    measure, Config(), Config(("12,120,20",), (2.0,), ("breast cancer",), (1,), 2)
)

if __name__ == "__main__":
    EXPERIMENT.main()
