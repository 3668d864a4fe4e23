"""Ridge regression over twenty tables: the route that is chosen from public moments, beside AdaSSP,
SSP and sketches.

Paper: Wang (2018), Algorithm 2 (AdaSSP); Vu, Slavkovic (2009) (SSP); Burkhardt et al. (2025),
section 6.2, for phi.
Data: scikit-learn's diabetes, digits, breast cancer, wine and iris, as they are and with rows
repeated to 20,000 and
    1e6 clients, and five stand-ins with n, d and phi(0) of UCI tables (``regression/tables.py``)
    and of a made-up one.
Command:  python experiments/regression/contest.py
Expected: mean phi of ``runs`` releases, delta = 1e-6, lambda = 10. "chosen" is what
``choose_regression`` puts first
    for the table's own moments; in no row it errs more than AdaSSP (a curator's, with the same
    rows) or SSP. Where noise hides everything that is a sketch, whose solution is 0 for all that it
    shows: "zero" is phi(0).
Output: results/regression/contest/contest.csv; printed: ``experiments/bench/regression_cpu.txt``.
Artifact: Wang (2018) | Algorithm 2
Status: agrees, and errs less
Time: two minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from baselines import AdaSSP, SufficientStatistics
from tables import FILES, repeated, scaled_columns, stand_in

from torchdp.randomness import keyed_generator
from torchdp.regression import (
    SecondMoments,
    adaptive_ridge,
    cautious_ridge,
    choose_regression,
    phi,
    solve_ridge,
)
from torchdp.simulate import Experiment

DELTA, RIDGE = 1e-6, 10.0
SOLVE = {"adaptive_ridge": adaptive_ridge, "cautious_ridge": cautious_ridge}


def tables(real: tuple[str, ...], clients: tuple[int, ...]):
    """Name, moments and the rows' bound."""
    from sklearn import datasets

    for name in real:
        found = getattr(datasets, f"load_{name}")()
        A = scaled_columns(torch.as_tensor(found.data).double())
        b = scaled_columns(torch.as_tensor(found.target[:, None] * 1.0))
        moments, bound = SecondMoments.of(A, b[:, 0]), float(A.norm(dim=1).max())
        yield name, moments, bound
        for n in clients:
            yield f"{name}, {n} clients", repeated(moments, n), bound
    for schema in FILES:
        yield (
            f"synthetic {schema.name.split()[0]}",
            stand_in(schema),
            math.sqrt(len(schema.features)),
        )
    generator = keyed_generator(b"contest", "cpu")
    wide = torch.randn(5000, 30, dtype=torch.float64, device="cpu", generator=generator) / 30**0.5
    wide = torch.as_tensor(wide)
    yield "thirty normal columns", SecondMoments.of(wide, (wide.sum(1) / 12).clamp(-1, 1)), 2.0


@dataclass(frozen=True)
class Config:
    real: tuple[str, ...] = ("diabetes", "digits", "breast_cancer", "wine", "iris")
    clients: tuple[int, ...] = (20_000, 1_000_000)
    epsilons: tuple[float, ...] = (0.1, 1.0)
    runs: int = 300


def measure(config, report):
    torch.set_num_threads(1)
    for name, moments, bound in tables(config.real, config.clients):
        d = moments.columns - 1
        for epsilon in config.epsilons:
            generator = keyed_generator(f"{name} {epsilon}".encode())
            repeats = {"generator": generator, "sample_shape": (config.runs,)}
            kind = {"epsilon": epsilon, "delta": DELTA}
            choice = choose_regression(moments, RIDGE, bound, 1.0, generator=generator, **kind)
            route, how = choice.candidates[0].name.rsplit(", ", 1)
            ada, ssp = (
                AdaSSP(d, bound, 1.0, epsilon, DELTA),
                SufficientStatistics(d, bound, 1.0, epsilon, DELTA),
            )
            plain = ssp.sample_estimate(moments, **repeats)
            found = {
                "AdaSSP": phi(
                    moments, ada.solve(ada.sample_estimate(moments, **repeats), RIDGE), RIDGE
                ),
                "SSP": phi(moments, solve_ridge(plain.gram, plain.cross, RIDGE), RIDGE),
            }
            predicted = {one.name: one.error for one in choice.candidates}
            sketch = min(error for other, error in predicted.items() if other.startswith("sketch"))
            if route == "gram":
                released = choice.best.sample_estimate(moments, **repeats)
                found["chosen"] = phi(moments, SOLVE[how](released, RIDGE), RIDGE)
            cells = {key: float(value.mean()) for key, value in found.items()}
            cells |= {
                f"{key}_error": float(value.std()) / math.sqrt(config.runs)
                for key, value in found.items()
            }
            cells |= {"sketch": sketch, "zero": float(phi(moments, torch.zeros(d), RIDGE))}
            cells.setdefault("chosen", choice.candidates[0].error)
            cells.setdefault("chosen_error", math.nan)
            order = ("chosen", "chosen_error", "AdaSSP", "AdaSSP_error", "SSP", "sketch", "zero")
            first = {
                "table": name,
                "n": moments.n,
                "d": d,
                "epsilon": epsilon,
                "route": f"{route}, {how}",
            }
            report.row("contest", **first, **{key: cells[key] for key in order})


EXPERIMENT = Experiment(measure, Config(), Config(("diabetes",), (1_000_000,), (1.0,), 20))

if __name__ == "__main__":
    EXPERIMENT.main()
