"""What the density scripts share, and what they repeat of the paper."""

import math
from types import SimpleNamespace

import pytest
from scripts import FOLDER, loaded

from torchdp.privacy.accounting import composed_delta
from torchdp.privacy.composition import pure_profile
from torchdp.randomness import keyed_generator
from torchdp.simulate.report import read_table

with loaded("density/error.py") as error:
    Config = error.Config
    protocol = error.protocol
    kernel = error.KERNELS["Gaussian"]

# of ten times each column
SUMS = {
    2: [8960, 8959, 8718, 7442, 3319],
    3: [7830, 7824, 7859, 7436, 5564],
    4: [8472, 8549, 8391, 7927, 6048],
    5: [4441, 4314, 4336, 3806, 2303],
}


def test_protocols_and_epsilons_share_the_random_features():
    """So that no privacy bounds the error of every protocol from below."""
    rows = []
    report = SimpleNamespace(say=str, row=lambda table, **cells: rows.append(cells))
    protocols = ("no privacy", "curator's Gaussian noise", "3NB, paper", "Pure, paper")
    config = Config(
        kernels=("Gaussian",), protocols=protocols, epsilons=(1.0, 4.5), draws=2, queries=20
    )
    error.measure(config, report)
    assert [row["protocol"] for row in rows[::2]] == list(protocols)
    least = float(rows[0]["predicted"])
    for row in rows:
        assert float(row["feature"]) == pytest.approx(float(rows[0]["feature"]), rel=1e-9)
        assert float(row["predicted"]) >= least * (1 - 1e-9)
    # and not by drawing the same for every use
    other = Config(kernels=("Gaussian",), protocols=protocols[:1], epsilons=(1.0,), draws=3)
    error.measure(other, report)
    assert float(rows[-1]["feature"]) != pytest.approx(float(rows[0]["feature"]), rel=1e-3)


def test_guarantee_local_needs_no_shuffler():
    """Each user's own bits compose to the target, by the profile of randomized response alone."""
    features = kernel(64, keyed_generator(b"local"))
    kde = protocol("local", features, 125, 1.0, 1e-5)
    own = math.log((1 - kde.law.flip) / kde.law.flip)
    for each, sign in ((own, 1), (1.001 * own, -1)):
        composed = composed_delta([pure_profile(each)], features.composed, 1.0)
        assert sign * (1e-5 - composed) >= 0


def test_the_papers_accuracies():
    """Tables 2 to 5: every figure, by the sums of each table's columns and by some of them."""
    rows = read_table(FOLDER / "density/paper_accuracy.csv")
    labels = ("inf", "7", "5", "3", "1")
    sums = {}
    for row in rows:
        total = sums.setdefault(row["table"], [0] * 5)
        for i, label in enumerate(labels):
            total[i] += round(10 * row[label])
    assert sums == SUMS
    at = {(row["data"], row["kernel"], row["protocol"], row["epsilon"]): row["5"] for row in rows}
    assert at["agnews", "Gaussian", "3NB", 4.5] == 68.5
    assert at["cifar10", "Gaussian", "3NB", 3] == 71.9
    assert at["cifar10", "inner product", "RR", 3] == 10.6
    assert len(at) == len(rows) == 48
    # the inner product's half of Table 4 is Table 2's: docs/corrections.md
    halves = [
        [[row[label] for label in labels] for row in rows if row["table"] == table][6:]
        for table in (2, 4)
    ]
    assert halves[0] == halves[1]
