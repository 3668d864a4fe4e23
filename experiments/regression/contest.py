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
    for the table's own moments; in no row its error exceeds that of AdaSSP (a curator's, with the
    same rows) or SSP. Where noise hides everything that is a sketch, whose solution is 0 for all that it
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

DELTA = 1e-6
RIDGE = 10.0
SOLVE = {"adaptive_ridge": adaptive_ridge, "cautious_ridge": cautious_ridge}


def tables(real: tuple[str, ...], clients: tuple[int, ...]):
    """Name, moments and the rows' bound."""
    from sklearn import datasets

    for name in real:
        found = getattr(datasets, f"load_{name}")()
        A = scaled_columns(torch.as_tensor(found.data).double())
        b = scaled_columns(torch.as_tensor(found.target[:, None] * 1.0))
        moments = SecondMoments.of(A, b[:, 0])
        bound = float(A.norm(dim=1).max())
        yield name, moments, bound
        for n in clients:
            yield f"{name}, {n} clients", repeated(moments, n), bound
    for schema in FILES:
        yield schema.synthetic, stand_in(schema), schema.bound
    generator = keyed_generator(b"contest", "cpu")
    normal = torch.randn(5000, 30, dtype=torch.float64, device="cpu", generator=generator)
    wide = torch.as_tensor(normal / 30**0.5)
    labels = (wide.sum(1) / 12).clamp(-1, 1)
    yield "thirty normal columns", SecondMoments.of(wide, labels), 2.0


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
            best = choice.candidates[0]
            route, how = best.name.rsplit(", ", 1)
            ssp = SufficientStatistics(d, bound, 1.0, epsilon, DELTA)
            plain = ssp.sample_estimate(moments, **repeats)
            ssp_errors = phi(moments, solve_ridge(plain.gram, plain.cross, RIDGE), RIDGE)
            ada = AdaSSP(d, bound, 1.0, epsilon, DELTA)
            estimates = ada.sample_estimate(moments, **repeats)
            ada_errors = phi(moments, ada.solve(estimates, RIDGE), RIDGE)
            # sketches are predicted only: they win where their solution is 0
            sketches = [one.error for one in choice.candidates if one.name.startswith("sketch")]
            chosen = best.error
            chosen_error = math.nan
            if route == "gram":
                released = choice.best.sample_estimate(moments, **repeats)
                errors = phi(moments, SOLVE[how](released, RIDGE), RIDGE)
                chosen = errors.mean()
                chosen_error = errors.std() / math.sqrt(config.runs)
            report.row(
                "contest",
                table=name,
                n=moments.n,
                d=d,
                epsilon=epsilon,
                route=best.name,
                chosen=chosen,
                chosen_error=chosen_error,
                AdaSSP=ada_errors.mean(),
                AdaSSP_error=ada_errors.std() / math.sqrt(config.runs),
                SSP=ssp_errors.mean(),
                sketch=min(sketches),
                zero=phi(moments, torch.zeros(d), RIDGE),
            )


EXPERIMENT = Experiment(measure, Config(), Config(("diabetes",), (1_000_000,), (1.0,), 20))

if __name__ == "__main__":
    EXPERIMENT.main()
