"""A batch of numbers is its loop: the same bits, a float for floats, refusals that name the
entry.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import generator, normal
from torch.testing import assert_close

from torchdp import pairwise, privacy, regression
from torchdp.queries import CentralFactorization, LocalFactorization, LocalOracle, Twice
from torchdp.randomizers import PrivUnit, RandomizedResponse, StrategyMatrix, SubsetSelection
from torchdp.regression import errors, ridge
from torchdp.regression.second_moment_noise import NoisyMoments, moment_vector
from torchdp.shuffle import RandomizedResponseSum, least_flip
from torchdp.sketching import entry_variance

SIZE = 24
# The call, and between which numbers each argument lies; the logarithm is drawn.
CALLS = {
    "gaussian_log_delta": (
        privacy.gaussian_log_delta,
        {
            "sigma": (1e-3, 1e3),
            "epsilon": (1e-9, 1e2),
            "sensitivity": (1e-2, 1e2),
        },
    ),
    "gaussian_sigma": (
        privacy.gaussian_sigma,
        {
            "epsilon": (1e-9, 1e6),
            "delta": (1e-30, 0.9999),
            "sensitivity": (1e-3, 1e3),
        },
    ),
    "PrivUnit.unit_variance": (PrivUnit.unit_variance, {"dim": (1, 1e6), "epsilon": (1e-6, 50)}),
    "entry_variance": (
        entry_variance,
        {
            "bound": (1e-3, 1e3),
            "epsilon": (1e-2, 20),
            "delta": (1e-12, 0.5),
        },
    ),
    "least_flip": (least_flip, {"users": (1, 60), "epsilon": (1e-2, 20), "delta": (1e-12, 0.5)}),
    "gaussian_epsilon": (privacy.gaussian_epsilon, {"mu": (1e-6, 2e3), "delta": (1e-30, 0.9999)}),
}
WHOLE = {"dim", "users"}
# of searches that end where all is safe: relative
NEAR = {"least_flip": 1e-4}
# One number of these is of floats, a batch of tensors: apart by roundings, and by the end of a
# search, 2^-38.
OF_FLOATS = {name: 4e-12 for name in CALLS if name.startswith(("gaussian", "entry_variance"))}
EACH = pytest.mark.parametrize("name", CALLS)


def drawn(name, size=SIZE):
    """The call, and a batch of each argument, both ends among them."""
    call, ranges = CALLS[name]
    batch = {}
    for i, (argument, (low, high)) in enumerate(ranges.items()):
        share = torch.rand(size, dtype=torch.float64, generator=generator(i))
        share[2 * i] = 0.0
        share[2 * i + 1] = 1.0
        logs = math.log(low) + share * math.log(high / low)
        batch[argument] = logs.exp().clamp(low, high)
        if argument in WHOLE:
            batch[argument] = batch[argument].floor()
    return call, batch


@EACH
def test_a_batch_is_its_loop(name):
    call, batch = drawn(name)
    columns = [each.tolist() for each in batch.values()]
    rows = zip(*columns, strict=True)
    loop = [call(**dict(zip(batch, row, strict=True))) for row in rows]
    assert all(type(one) is float for one in loop)
    found = call(**batch)
    apart = (NEAR | OF_FLOATS).get(name, 0)
    assert found.dtype == torch.float64
    # the loop's own numbers, or as near as is listed
    assert found.tolist() == pytest.approx(loop, rel=apart, abs=0)
    arrays = {argument: each.numpy() for argument, each in batch.items()}
    lists = {argument: each.tolist() for argument, each in batch.items()}
    assert torch.equal(call(**arrays), found)
    assert torch.equal(call(**lists), found)


@EACH
def test_arguments_broadcast(name):
    call, batch = drawn(name)
    first, *others = batch
    rows = {first: batch[first][:3, None], **{other: batch[other][:4] for other in others}}
    spread = {
        first: rows[first].expand(3, 4),
        **{other: rows[other].expand(3, 4) for other in others},
    }
    found = call(**rows)
    assert found.shape == ((3, 4) if others else (3, 1))
    found_there = call(**spread)[:, : found.shape[1]]
    same = found_there.flatten().tolist()
    assert found.flatten().tolist() == pytest.approx(same, rel=NEAR.get(name, 0), abs=0)
    one = call(**{argument: each[0] for argument, each in batch.items()})
    assert isinstance(one, torch.Tensor)
    assert one.shape == ()
    assert call(
        **{first: torch.zeros(0), **{other: float(batch[other][0]) for other in others}}
    ).shape == (0,)


@EACH
def test_refusals_name_the_entry(name):
    call, batch = drawn(name)
    for argument in batch:
        bad = batch[argument].clone()
        bad[[5, 13]] = math.nan
        with pytest.raises(ValueError, match=rf"^{argument}\[5\] must"):
            call(**batch | {argument: bad})
        with pytest.raises(ValueError, match=rf"^{argument}\[0, 5\] must"):
            call(**batch | {argument: bad.view(1, SIZE).numpy()})


@pytest.mark.parametrize("users", [1, 2, 3, 40, 700])
def test_guarantee_the_least_flip_is_private_and_a_little_less_is_not(users):
    epsilon = torch.tensor([0.03, 0.5, 2.0, 8.0], dtype=torch.float64)
    found = least_flip(
        users, epsilon[:, None], torch.tensor([1e-9, 1e-3, 0.2], dtype=torch.float64)
    )
    for at, row in zip(epsilon.tolist(), found.tolist(), strict=True):
        for delta, flip in zip([1e-9, 1e-3, 0.2], row, strict=True):
            (curve,) = RandomizedResponseSum(users, flip).profiles()
            # a thousandth less noise is seen
            (less,) = RandomizedResponseSum(users, 0.999 * flip).profiles()
            assert curve(np.array([at])) <= delta < less(np.array([at]))


# Second moments of 2 x 3 sets of rows, the label last; solutions, spaces and regularizations for
# each.
ROWS = normal(2, 3, 40, 4)
MATRIX = ROWS.mT @ ROWS
N = torch.tensor([[40, 50, 60], [70, 80, 90]])
X = normal(2, 3, 3, seed=1)
RIDGES = normal(2, 3, seed=3).abs()
SPACE = torch.linalg.qr(normal(2, 3, 4, 2, seed=2)).Q
RELEASED = moment_vector(MATRIX + 5 * normal(2, 3, 4, 4, seed=4), True)
OBJECTS = {
    "loss": lambda at, m, noisy: regression.loss(m, X[at], 0.5),
    "phi": lambda at, m, noisy: regression.phi(m, X[at], 0.5),
    "least_squares": lambda at, m, noisy: errors.least_squares(m, 0.5),
    "psi": lambda at, m, noisy: regression.psi(m, SPACE[at]),
    "random_psi": lambda at, m, noisy: ridge.random_psi(m, 2),
    "predicted_psi": lambda at, m, noisy: ridge.predicted_psi(m, 2, 3.0),
    "predicted_psi_of_sketch": lambda at, m, noisy: ridge.predicted_psi_of_sketch(m, 2, 9, 0.1),
    "predicted_phi_of_sketch": lambda at, m, noisy: ridge.predicted_phi_of_sketch(m, 0.5, 30, 0.1),
    "solve_ridge": lambda at, m, noisy: ridge.solve_ridge(m.gram, m.cross, RIDGES[at]),
    "adaptive_ridge": lambda at, m, noisy: ridge.adaptive_ridge(noisy, 0.5),
    "cautious_ridge": lambda at, m, noisy: ridge.cautious_ridge(noisy, 0.5),
    # of either sign
    "top_directions": lambda at, m, noisy: ridge.top_directions(m.matrix, 2).abs(),
}


def test_more_numbers_than_arguments_are_a_type_error():
    with pytest.raises(TypeError, match="too many positional arguments"):
        privacy.gaussian_sigma(1.0, 1e-6, 1.0, 2.0)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_batch_of_objects_is_its_loop(name):
    def of(at, n):
        noisy = NoisyMoments(
            RELEASED[at],
            torch.full_like(RELEASED[at], 5.0),
            n,
            columns=3,
        )
        return OBJECTS[name](at, regression.SecondMoments(n, MATRIX[at]), noisy)

    found = of(slice(None), N)
    for at in np.ndindex(2, 3):
        # the same sums in another order
        assert_close(found[at], of(at, int(N[at])), rtol=1e-10, atol=1e-12)


def test_a_fit_without_loss_in_a_batch_is_named():
    matrix = MATRIX.clone()
    matrix[0, 1] = 0
    with pytest.raises(ValueError, match=r"undefined at batch index \(0, 1\)"):
        regression.phi(regression.SecondMoments(N, matrix), X, 0.5)
    with pytest.raises(ValueError, match=r"singular at batch index \(0, 1\)"):
        ridge.solve_ridge(
            matrix[..., :-1, :-1],
            matrix[..., :-1, -1],
            0.0,
        )


KERNELS = normal(1, 2, 5, 5, seed=6)
MANY = pairwise.from_kernel(KERNELS + KERNELS.mT)
STRATEGY = StrategyMatrix.tuned(
    torch.eye(5).double(),
    2.0,
    generator=generator(0),
    steps=20,
)
PAIRS = {
    "two messages": lambda asked: Twice.of(asked, 2.0),
    "one message": lambda asked: LocalFactorization.of(asked, 2.0),
    "randomized response": lambda asked: LocalOracle.of(asked, RandomizedResponse(5, 2.0)),
    "subsets": lambda asked: LocalOracle.of(asked, SubsetSelection(5, 2.0)),
    "a strategy": lambda asked: LocalOracle.of(asked, STRATEGY),
    "a curator": lambda asked: CentralFactorization.of(asked, 2.0, 1e-6),
}


@pytest.mark.parametrize("ratio", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_many_kernels_of_one_tally_are_their_loop(name, ratio):
    def of(at):
        below = MANY.form.weights.abs().flip(1)[at]
        form = pairwise.Form(MANY.form.weights[at], MANY.form.constant[at])
        chosen = replace(MANY, form=form, denominator=pairwise.Form(below, 40.0) if ratio else None)
        # others take coordinates of their own
        own = PAIRS[name](pairwise.unequal(5)).analyst.estimated_pairs
        return PAIRS[name](replace(chosen, pairs=own))

    def answers(protocol):
        estimate = protocol.analyse(tally)
        ends = () if ratio else estimate.interval(0.9)
        return [
            estimate.value,
            estimate.standard_error,
            *ends,
            protocol.predicted_mse(counts),
            protocol.exact(counts),
        ]

    counts = torch.tensor([[10, 20, 30, 40, 500], [7, 0, 9, 100, 3]])
    n = torch.tensor([50, 2000])
    many = of(...)
    loop = [of((0, i)) for i in range(2)]
    tally = many.sample_tally(counts, generator=generator(1), sample_shape=(3,))
    each = zip(answers(many), *map(answers, loop), strict=True)
    for found, *expected in each:
        assert_close(found[..., 0, :], torch.stack(expected, -1), rtol=1e-9, atol=1e-9)
    worst = torch.stack([one.worst_mse(n) for one in loop]).amax(0)
    assert_close(many.worst_mse(n), worst, rtol=1e-10, atol=0)
