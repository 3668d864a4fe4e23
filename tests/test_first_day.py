"""The ten mistakes of a first day: each is refused in words that name the argument and the cure."""

import pandas as pd
import pytest
import torch

from torchdp import checks, pairwise, queries, randomizers, training, workloads

ORACLE = randomizers.RandomizedResponse(3, 1.0)
PAIRS = pairwise.OneMessage(pairwise.unequal(3), 1.0)
BUDGET = {"epsilon": 1.0, "delta": 1e-3}


def plan(**options):
    return training.choose(training.Iterates(3), 6, 2, **BUDGET, **options).best


def missing():
    with checks.needing("a figure", "no_such_package"):
        import no_such_package  # noqa: F401


def pair():
    run = plan().start(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
    users = next(iter(run))
    run.backward((torch.ones(len(users), 2),) * 2, torch.ones(len(users), 1))


@pytest.mark.parametrize(
    ("mistake", "cure"),
    [
        (
            lambda: ORACLE.estimate(torch.zeros(3).double()),
            r"x must be an integer.*float64; call \.to\(torch\.int64",
        ),
        (
            lambda: ORACLE.estimate(pd.Series(["a", "b"])),
            r"x must hold numbers.*state its public values, \.astype",
        ),
        (lambda: ORACLE.estimate([0, 1]), r"x must be a torch\.Tensor, not list; torch\.as_tensor makes one"),
        (lambda: randomizers.RandomizedResponse(3, -1.0), r"epsilon must be a finite number > 0, not -1\.0"),
        (
            lambda: queries.choose(workloads.identity(3), 9, 90.0),
            r"epsilon must lie in .*not 90\.0; it is no percent",
        ),
        (lambda: ORACLE.estimate(torch.tensor([1, 2, 3])), r"x must lie in \[0, 3\), counted from 0"),
        (pair, r"inputs must be a Tensor, or a dict.*pass dict\(input=\.\.\.\)"),
        (lambda: plan(clip=1.0), r"choose takes no clip: the clipping norm is bound="),
        (missing, r"a figure needs no_such_package .*: pip install no_such_package"),
        (
            lambda: checks.device("device", "cuda:99"),
            r"device must be a device of this machine, .*, not 'cuda:99'",
        ),
        (
            lambda: PAIRS.estimate(torch.tensor([1])),
            r"tally\.n, the number of users, must be an integer >= 2, not 1",
        ),
    ],
)
def test_the_cure_is_named(mistake, cure):
    with pytest.raises((TypeError, ValueError, ImportError), match=cure):
        mistake()
