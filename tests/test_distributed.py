"""Users in parts: the same tallies as of all at once, whoever holds the parts."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from laws import z_scores

from torchdp import distributed, mean, pairwise, queries, randomizers, workloads
from torchdp.domains import Box
from torchdp.noise import SeededNoise
from torchdp.queries import CentralLaplace, LocalOracle, SecureQueries
from torchdp.shuffle import PoissonSum

dask = pytest.importorskip("dask")
array = pytest.importorskip("dask.array")

TYPES = torch.arange(4).repeat(300)
PARTS = (TYPES[:500], TYPES[:0], TYPES[500:1199], TYPES[1199:])
WORKLOAD = workloads.prefix(4).dense()
LOCAL = LocalOracle(WORKLOAD, randomizers.RandomizedResponse(4, 20.0))
PEOPLE = pd.CategoricalDtype(["a", "b", "c", "d"])


def scheduled(frame):
    """A Dask Series of the categories of PARTS, without dask.dataframe's optional packages."""
    pieces = [dask.delayed(part) for part in frame]

    class Series:
        def to_delayed(self):
            return pieces

    return Series()


def test_messages_of_parts_are_those_of_all():
    """At an epsilon where every message is the user's own type."""
    tally = distributed.collect(LOCAL, iter(PARTS))
    assert tally.n == len(TYPES)
    torch.testing.assert_close(tally["reports"], TYPES.bincount())


def test_guarantee_a_curator_draws_its_noise_once():
    """The variance is that of one release; of a release of each part it would be three times."""
    protocol = CentralLaplace.of(queries.Linear(WORKLOAD), epsilon=0.5)
    values = []
    for _ in range(400):
        values.append(protocol.analyse(distributed.collect(protocol, PARTS)).value)
    error = torch.stack(values) - protocol.exact(TYPES.bincount())
    predicted = protocol.predicted_mse(TYPES.bincount())
    measured = error[:, :3].square()
    assert bool((z_scores(measured, predicted[:3]).abs() < 5).all())


@pytest.mark.parametrize(
    "protocol",
    [
        CentralLaplace.of(queries.Linear(WORKLOAD), epsilon=600.0),
        queries.CentralAnswers(pairwise.unequal(4), 600.0),
        queries.ShuffledQueries.of(
            pairwise.unequal(4), PoissonSum, len(TYPES), epsilon=9.0, delta=1e-3
        ),
    ],
    ids=["types", "answers", "shuffled"],
)
def test_questions_of_parts_have_the_answer_of_all(protocol):
    found = protocol.analyse(distributed.collect(protocol, PARTS))
    away = (found.value - protocol.exact(TYPES.bincount())).abs()
    assert bool((away <= 8 * found.standard_error + 1e-9).all())


def test_a_mean_of_a_file_that_is_read_in_slices(tmp_path):
    rows = np.random.default_rng(0).uniform(0, 1, (10_000, 2))
    path = tmp_path / "rows.dat"
    rows.tofile(path)
    table = np.memmap(path, mode="r").view(np.float64).reshape(-1, 2)
    protocol = mean.GaussianMean.tuned(
        Box(torch.zeros(2), torch.ones(2)), delta=1e-6, epsilon=500.0
    )
    slices = (np.asarray(table[start : start + 999]) for start in range(0, 10_000, 999))
    found = protocol.analyse(distributed.collect(protocol, slices))
    away = (found.value - torch.from_numpy(rows.mean(0))).abs()
    assert bool((away < 6 * found.standard_error).all())
    # rounded to the same steps as in one call, but for where blocks of users begin
    whole = protocol.added(torch.from_numpy(rows))
    halves = [protocol.added(torch.from_numpy(part)) for part in np.split(rows, 2)]
    assert int((whole["whole"] - halves[0]["whole"] - halves[1]["whole"]).abs().max()) <= 2
    noise = SeededNoise(0)
    assert protocol.noised(whole, noise).n == 10_000


def test_partitions_of_dask_series_and_arrays():
    tables = [pd.Series(part.numpy()).map(lambda code: "abcd"[code]) for part in PARTS]
    tables = [table.astype(PEOPLE) for table in tables]
    with dask.config.set(scheduler="threads", num_workers=2):
        by_table = distributed.collect(LOCAL, scheduled(tables))
        rows = array.from_array(TYPES.numpy(), chunks=700)
        by_array = distributed.collect(LOCAL, rows)
    for tally in (by_table, by_array):
        torch.testing.assert_close(tally["reports"], TYPES.bincount())


def test_what_does_not_add_is_refused_before_anything_is_read():
    def unread():
        raise AssertionError("nothing may be read")
        yield

    secure = SecureQueries.of(queries.Linear(WORKLOAD), 10, 1.0, 1e-6)
    rounds = pairwise.TwoRound(pairwise.absolute_difference(4), 8.0, 4.0, 0.8)
    for protocol in (secure, rounds):
        with pytest.raises(TypeError, match="asks all users together"):
            distributed.collect(protocol, unread())
    with pytest.raises(ValueError, match="one user at least"):
        distributed.collect(LOCAL, [TYPES[:0]])
    with pytest.raises(ValueError, match="joins the columns"):
        distributed.collect(LOCAL, array.zeros((4, 4), chunks=2))
    box = Box(torch.zeros(2), torch.ones(2))
    shape = mean.GaussianMean.tuned(box, delta=1e-6, epsilon=1.0).shape
    covariance = mean.GaussianCovariance.calibrated(box, shape, delta=1e-6, epsilon=1.0)
    with pytest.raises(TypeError, match="types or GaussianMean"):
        distributed.collect(covariance, [torch.zeros(3, 2)])


def test_parts_whose_categories_are_in_another_order_are_refused():
    """Codes of one part would be other types in the next, without an error anywhere."""
    one = pd.Series(["a", "b"]).astype(PEOPLE)
    other = pd.Series(["a", "b"]).astype(pd.CategoricalDtype(["b", "a", "c", "d"]))
    with pytest.raises(ValueError, match="the same categories"):
        distributed.collect(LOCAL, [one, other])


class Deadly:
    """A partition whose worker is killed the first time that it is read."""

    def __init__(self, path):
        self.path = path

    def to_pandas(self):
        if not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pd.Series([3] * 100).astype(pd.CategoricalDtype(range(4)))


@pytest.mark.slow
def test_a_killed_worker_loses_nobody_and_counts_nobody_twice(tmp_path):
    cluster = pytest.importorskip("dask.distributed")
    tables = [pd.Series(part.numpy()).astype(pd.CategoricalDtype(range(4))) for part in PARTS]
    pieces = [*tables, Deadly(tmp_path / "killed")]
    with (
        cluster.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as two,
        cluster.Client(two),
    ):
        tally = distributed.collect(LOCAL, scheduled(pieces))
    assert (tmp_path / "killed").exists()
    expected = TYPES.bincount()
    expected[3] += 100
    torch.testing.assert_close(tally["reports"], expected)
