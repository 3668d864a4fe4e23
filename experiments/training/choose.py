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

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment
from torchdp.threads import on_host
from torchdp.training import Iterates, choose

DELTA = 1e-5


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = ("120,1500,50", "2000,60000,1000")  # steps, users, batch
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    tables: tuple[str, ...] = ("digits", "breast cancer")
    epochs: tuple[int, ...] = (1, 4, 20)
    seeds: int = 20  # every run has draws of its own


def table(name):
    """Columns of mean 0 and length such that rows have norm about 1, and classes; in a fixed
    order.
    """
    x, y = map(
        torch.tensor, (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    )
    order = torch.randperm(len(x), device="cpu", generator=keyed_generator(b"split", "cpu"))
    x = x.double()[order]
    # public scales, as all methods get them
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-9) / x.shape[1] ** 0.5
    return x.float(), y[order]


def accuracy(plan, x, y, seed):
    """On the rows after the users'."""
    model = nn.Linear(x.shape[1], int(y.max()) + 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    run = plan.start(
        model, nn.functional.cross_entropy, noise=SeededNoise(zlib.crc32(seed.encode()))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for users in run:
        run.backward(x[users], y[users])
        optimizer.step()
    return float((model(x[plan.users :]).argmax(1) == y[plan.users :]).double().mean())


@on_host
def opacus(x, y, users, epsilon, epochs, seed):
    """Opacus's DP-SGD on the same rows, model and learning rate: Poisson batches, its own
    accountant.
    """
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return None
    x, y = x.cpu(), y.cpu()  # whose loader draws on the host
    torch.manual_seed(zlib.crc32(seed.encode()))
    model = nn.Linear(x.shape[1], int(y.max()) + 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = torch.utils.data.TensorDataset(x[:users], y[:users])
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=4.0), max_grad_norm=1.0,
        data_loader=torch.utils.data.DataLoader(data, batch_size=50),
        target_epsilon=epsilon, target_delta=DELTA, epochs=epochs,
    )  # fmt: skip
    for _ in range(epochs):
        for rows, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(rows), classes).backward()
            optimizer.step()
    return float((model(x[users:]).argmax(1) == y[users:]).double().mean())


def measure(config, report):
    torch.set_num_threads(1)
    for steps, users, batch in (map(int, cell.split(",")) for cell in config.cells):
        for epsilon in config.epsilons:
            choice = choose(Iterates(steps), users, batch, epsilon=epsilon, delta=DELTA)
            for one in choice.candidates:
                cell = {"steps": steps, "users": users, "batch": batch, "epsilon": epsilon}
                report.row("errors", **cell, plan=one.name, error=one.error)
    for name in config.tables:
        x, y = table(name)
        users = len(x) * 4 // 5 // 50 * 50
        for epsilon in config.epsilons:
            for epochs in config.epochs:
                choice = choose(
                    Iterates(epochs * users // 50), users, 50, epsilon=epsilon, delta=DELTA
                )
                plans = {one.name: one for one in choice.candidates}
                rows = {"chosen: " + choice.candidates[0].name: choice.candidates[0]}
                rows |= {key: plans[key] for key in ("Poisson, independent noise", "fixed order")}
                cell = {"table": name, "epsilon": epsilon, "epochs": epochs}
                seeds = [f"{name} {epsilon} {epochs} {seed}" for seed in range(config.seeds)]
                runs = {
                    key: [accuracy(one.protocol, x, y, key + s) for s in seeds]
                    for key, one in rows.items()
                }
                theirs = [opacus(x, y, users, epsilon, epochs, seed) for seed in seeds]
                runs["Opacus, DP-SGD"] = [found for found in theirs if found is not None]
                for key, found in runs.items():
                    if found:
                        mean, spread = (
                            torch.tensor(found).mean(),
                            torch.tensor(found).std() / len(found) ** 0.5,
                        )
                        error = rows[key].error if key in rows else None
                        report.row(
                            "accuracy",
                            **cell,
                            plan=key,
                            error=error,
                            accuracy=mean,
                            standard_error=spread,
                        )


EXPERIMENT = Experiment(
    measure, Config(), Config(("12,120,20",), (2.0,), ("breast cancer",), (1,), 2)
)

if __name__ == "__main__":
    EXPERIMENT.main()
