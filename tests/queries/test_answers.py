"""Noise on the answers themselves: what one user moves, rounding, and the choice of it."""

import itertools
import math

import mpmath
import pytest
import torch
from laws import float64, normal

from torchdp import pairwise, queries, workloads
from torchdp.pairwise import Pairs
from torchdp.queries import CentralAnswers, Linear, Several
from torchdp.queries.answers import SPARE, STEPS

RANDOM = normal(3, 3, name=b"kernel")
KERNEL = RANDOM + RANDOM.mT
LINEAR = Linear(float64([[0.1, 0.37, 2.0]]))
CUBIC = pairwise.third_central_moment(3)
BOUNDED = {
    "kendall": pairwise.kendall(2, 2),
    "kernel": pairwise.from_kernel(KERNEL),
    "all pairs": pairwise.from_kernel(KERNEL, pairs=Pairs.ALL),
    "cubic": CUBIC,
    "linear": LINEAR,
    "several": Several((pairwise.from_kernel(KERNEL), LINEAR, CUBIC)),
}


def all_counts(k, n):
    """Every histogram of n users of k types."""
    rows = itertools.combinations_with_replacement(range(k), n)
    return torch.stack([torch.tensor(row).bincount(minlength=k) for row in rows])


@pytest.mark.parametrize("name", BOUNDED)
def test_guarantee_one_user_moves_the_whole_steps_by_no_more_than_the_noise_is_for(name):
    """All neighbouring data of three and of seven users; of three it is attained but for SPARE."""
    question = BOUNDED[name]
    protocol = CentralAnswers(question, 1.0)
    most = question.bounded.moved.numel() * (STEPS + SPARE)
    assert protocol.rate * most <= 1.0
    attained = []
    for n in (3, 7):
        counts = all_counts(question.types, n)
        answers = question.bounded.exact(counts) / protocol.step(n)
        steps = answers.round().reshape(len(counts), -1)
        moved = (steps[:, None] - steps).abs().sum(-1)
        neighbours = (counts[:, None] - counts).abs().sum(-1) <= 2
        attained.append(float(moved[neighbours].max()) / most)
    assert max(attained) <= 1.0
    if name not in ("all pairs", "several"):
        # Half of the noise would break the guarantee.
        assert attained[0] > 1 - 2 * SPARE / STEPS


@pytest.mark.parametrize("name", ["kendall", "kernel", "cubic", "linear"])
@pytest.mark.parametrize("n", [10, 10**5, 10**9])
def test_guarantee_floats_miss_the_answers_by_no_more_than_is_stated(name, n):
    """By 60 digits, over all tuples of types."""
    question = BOUNDED[name]
    k = question.types
    shares = float64(range(1, k + 1))
    counts = (shares / shares.sum() * n).round().long()
    counts[0] += n - counts.sum()
    found = question.bounded.exact(counts).flatten()[0]
    if name == "linear":
        kernel = question.workload[0]
    elif name == "cubic":
        kernel = question.kernel
    else:
        kernel = question.kernel(question.form)
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for types in itertools.product(range(k), repeat=kernel.ndim):
            left = counts.tolist()
            tuples = 1
            for x in types:
                tuples *= left[x]
                left[x] -= 1
            total += mpmath.mpf(float(kernel[types])) * tuples
        truth = total / mpmath.ff(n, kernel.ndim)
        missed = abs(truth - float(found))
    stated = float(question.bounded.terms(float64(n)) * question.bounded.size.max()) * 2.0**-52
    assert float(missed) <= stated
    # not so wide that it would say nothing
    assert stated < 1e-10 * float(question.bounded.size.max())


def test_so_many_users_that_floats_are_off_are_refused_whatever_they_hold():
    protocol = CentralAnswers(pairwise.from_kernel(KERNEL + 1e7), 1.0)
    generator = torch.Generator().manual_seed(0)
    protocol.sample_estimate(torch.tensor([10, 20, 30]), generator=generator)
    for counts in ([10**7, 0, 0], [10**6, 10**6, 8 * 10**6]):
        with pytest.raises(ValueError, match="fewer users: float64 does not tell"):
            protocol.sample_estimate(torch.tensor(counts), generator=generator)


def test_what_one_user_moves_by_an_unknown_amount_is_refused():
    with pytest.raises(ValueError, match=r"known amount.*not Spearman"):
        CentralAnswers(queries.Spearman(2, 2), 1.0)
    with pytest.raises(ValueError, match="no constant answers"):
        CentralAnswers(Linear(torch.ones(2, 3)), 1.0)
    with pytest.raises(ValueError, match="of 3 users at least"):
        CentralAnswers(CUBIC, 1.0).estimate(torch.tensor([0, 1]))


def test_several_answers_come_each_with_its_interval():
    protocol = CentralAnswers(BOUNDED["several"], 2.0)
    types = torch.arange(3).repeat(100)
    found = protocol.estimate(types)
    assert [one.value.shape for one in found.each] == [(), (1,), ()]
    alone = CentralAnswers(LINEAR, 2.0)
    ratio = found.each[1].standard_error / alone.estimate(types).standard_error
    # Three answers share one epsilon.
    torch.testing.assert_close(ratio, float64([3.0]), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.covariance().diagonal(), found.standard_error.square())


def test_a_sample_varies_no_more_than_is_stated():
    """Kendall's tau of users drawn from a population: 4 Var f_1/n, below D^2/(4 n)."""
    question = pairwise.kendall(3, 3)
    n = 400
    shares = torch.eye(3, dtype=torch.float64).flatten() / 3
    draws = torch.distributions.Multinomial(n, shares).sample((2_000,)).long()
    answers = question.exact(draws)
    of_population = CentralAnswers(question, 1e2).sample_estimate(
        draws, generator=torch.Generator().manual_seed(1)
    )
    stated = of_population.of_population().standard_error
    assert bool((answers.std() < stated).all())
    assert float(stated[0]) == pytest.approx(2 / math.sqrt(n), rel=1e-3)


@pytest.mark.parametrize(
    ("question", "n", "gain"),
    [(pairwise.kendall(8, 8), 10**6, 6.0), (pairwise.absolute_difference(16), 10**4, 1.7)],
)
def test_the_choice_for_a_curator_takes_it_where_it_has_less_error(question, n, gain):
    choice = queries.choose(question, n, 1.0, 1e-6, trust="curator", search=False)
    errors = {one.name: one.error for one in choice.candidates}
    assert isinstance(choice.best, CentralAnswers)
    assert errors["sums, discrete Laplace"] > gain * choice.candidates[0].error


def test_irregular_values_of_one_query_get_pure_noise():
    """Whole steps of no common size: counts of types, or the answer itself."""
    W = float64([[0.1, 0.37, 2.0, math.pi]])
    choice = queries.choose(W, 1_000, 1.0, 1e-6, trust="curator", search=False)
    assert isinstance(choice.best, CentralAnswers)
    # twice the variance of Laplace noise at scale range/epsilon
    expected = math.sqrt(2) * (math.pi - 0.1) / 1_000
    assert choice.candidates[0].error == pytest.approx(expected, rel=1e-3)


def test_several_questions_are_judged_in_one_unit_whoever_is_trusted():
    """Errors of a curator's candidates and of a shuffler's are relative to the same least one."""
    question = Several((pairwise.absolute_difference(4), Linear(workloads.prefix(4).dense())))
    curator = queries.choose(question, 1_000, 1.0, 1e-6, trust="curator")
    shuffled = queries.choose(question, 1_000, 1.0, 1e-6, trust="shuffle")
    name = "sums, CorrelatedSum"
    by_curator = {one.name: one.error for one in curator.candidates}
    by_shuffler = {one.name: one.error for one in shuffled.candidates}
    # The curator's best has less error than a shuffler's, which alone would be its own unit.
    assert by_curator[name] > 1.01 * by_shuffler[name]


def test_every_part_of_many_repetitions_has_its_noise(monkeypatch):
    monkeypatch.setattr("torchdp.queries.answers.AT_ONCE", 300)
    protocol = CentralAnswers(LINEAR, 1.0)
    counts = torch.tensor([10, 20, 30])
    generator = torch.Generator().manual_seed(2)
    found = protocol.sample_estimate(counts, generator=generator, sample_shape=(1_000,))
    squares = (found.value - protocol.exact(counts)).square().flatten()
    ratios = torch.stack([part.mean() for part in squares.split(300)])
    # the kurtosis of Laplace noise is 6: five standard errors of a part of 100
    assert bool(((ratios / protocol.predicted_mse(counts) - 1).abs() < 1.2).all())
    assert ratios.unique().numel() == 4
