"""Learned strategies: private whatever their parameters, smooth, and better for the worst query."""

import math

import pytest
import torch
from laws import log_ratio, normal, uniform

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.randomizers import LearnedStrategy, StrategyMatrix
from torchdp.randomizers.alphabet.strategy_descent import Descent, Variances
from torchdp.randomness import keyed_generator


def response(k, epsilon):
    """The strategy matrix of randomized response."""
    Q = torch.ones(k, k, dtype=torch.float64) + math.expm1(epsilon) * torch.eye(
        k, dtype=torch.float64
    )
    return StrategyMatrix(Q / Q.sum(0))


def module(k=5, epsilon=1.0, m=9):
    rows = uniform(m, k, name=b"rows") * math.expm1(0.3 * epsilon) + 1
    return LearnedStrategy(rows / rows.sum(0), epsilon)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0, 30.0])
def test_guarantee_epsilon_holds_whatever_the_parameters_are(epsilon, size):
    learned = module(epsilon=epsilon)
    generator = keyed_generator(b"parameters")
    for _ in range(20):
        for parameter in learned.parameters():
            noise = torch.randn(
                parameter.shape,
                dtype=torch.float64,
                generator=generator,
            )
            parameter.data = noise * (size if parameter is not learned.level else min(size, 3.0))
        Q = learned().detach()
        assert (Q > 0).all()
        assert float((Q.sum(0) - 1).abs().max()) < 1e-11
        assert log_ratio(Q) <= epsilon
        try:
            assert StrategyMatrix(Q).epsilon <= epsilon * (1 + 1e-15)
        # no output that says something has a chance that integers of 63 bits express
        except ValueError as error:
            informative = Q.amax(1) > Q.amin(1) * (1 + 1e-9)
            told = float(Q[informative].max())
            assert "63 bits" in str(error)
            assert told * min(epsilon, 1) < 2.0**-60


def test_a_matrix_that_spends_more_is_seen():
    learned = module(epsilon=1.0)
    learned.logits.data = 30 * normal(*learned.logits.shape, name=b"far")
    # planted: the module takes more than it was made for
    learned.epsilon = 1.01
    Q = learned().detach()
    assert log_ratio(Q) > 1.0 + 5e-3


def test_gradients():
    learned = module()
    parameters = [parameter.detach().clone() for parameter in learned.parameters()]
    values = tuple(parameter.requires_grad_() for parameter in parameters)
    # by name, so that gradients reach all parameters
    names = [name for name, _ in learned.named_parameters()]

    def matrix(*parameters):
        return torch.func.functional_call(learned, dict(zip(names, parameters, strict=True)), ())

    assert torch.autograd.gradcheck(matrix, values)


def answer_variances(Q, W, prior):
    """Of one user's part in each answer, (queries, types), by the best decoder."""
    scaled = Q / (Q @ prior)[:, None]
    V = W @ torch.linalg.solve(Q.mT @ scaled, scaled.mT)
    return V.square() @ Q - W.square()


def test_variances_are_those_of_the_strategy():
    strategy = StrategyMatrix(module()().detach(), torch.arange(1.0, 6.0))
    W = workloads.prefix(5).dense()
    prior = torch.arange(1.0, 6.0).double() / 15
    expected = strategy.workload_variance(W)
    torch.testing.assert_close(answer_variances(strategy.matrix, W, prior), expected)
    torch.testing.assert_close(Variances(strategy.matrix, prior, W, False).values, expected)
    added = Variances(strategy.matrix, prior, W, True).values
    torch.testing.assert_close(added, expected.sum(0, keepdim=True))


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("given", [False, True])
def test_the_written_gradient_is_that_of_the_smooth_maximum(objective, epsilon, given):
    learned = module(epsilon=epsilon)
    W = normal(7, 5, name=b"queries")
    heights = normal(5, name=b"heights")
    prior = heights.softmax(0) if given else None
    parameters = (learned.logits, learned.weights, learned.level)
    learned()  # the shifts
    descent = Descent(
        *(parameter.detach() for parameter in parameters),
        heights,
        learned._growth,
        W,
        prior,
        objective,
    )
    descent.shift = learned._last
    found = descent._gradient(temperature=0.05)
    # the same by automatic differentiation, which shares nothing with it but the module
    heights.requires_grad_()
    decoders = heights.softmax(0) if prior is None else prior
    variances = answer_variances(learned(), W, decoders)
    if objective is Objective.MEAN:
        variances = variances.sum(0, keepdim=True)
    judged = variances.flatten() if prior is None else variances @ prior
    largest = judged.detach().max()
    loss = torch.logsumexp(judged / largest / 0.05, 0) * 0.05
    expected = torch.autograd.grad(loss, (*parameters, heights), allow_unused=True)
    flat = [torch.zeros_like(heights) if g is None else g.flatten() for g in expected]
    torch.testing.assert_close(found, torch.cat(flat), rtol=1e-6, atol=1e-9)


def test_a_descent_tracks_the_columns_of_sum_1():
    learned = module(k=8, m=24)
    W = workloads.prefix(8).dense()
    parameters = (learned.logits, learned.weights, learned.level)
    start = [parameter.detach() for parameter in parameters]
    descent = Descent(*start, W.new_zeros(8), learned._growth, W, None, Objective.MEAN)
    descent.run(60)
    descent._gradient(temperature=0.05)  # after the last step
    learned.logits.data = descent.logits
    learned.weights.data = descent.weights
    learned.level.data = descent.level
    learned()
    assert float((descent.shift - learned._last).abs().max()) < 1e-3


def test_a_descent_ends_where_the_rank_is_lost():
    W = workloads.prefix(4).dense()
    logits = W.new_zeros(6, 4)  # all columns are the same
    logits[:, 1] = 0.5
    level = W.new_tensor(0.0)
    descent = Descent(logits, W.new_zeros(6), level, W.new_zeros(4), 1.7, W, None, Objective.MEAN)
    descent.run(5)
    assert descent.adam.count == 0
    assert descent.logits.isfinite().all()


@pytest.mark.parametrize(
    "W",
    [
        workloads.prefix(6).dense(),
        workloads.all_ranges(6).dense(),
    ],
)
def test_guarantee_the_worst_query_gets_better_and_epsilon_is_kept(W):
    start = StrategyMatrix.tuned(
        W,
        1.0,
        generator=keyed_generator(b"start"),
        steps=120,
    )
    found = StrategyMatrix.tuned(
        W,
        1.0,
        None,
        Objective.WORST,
        generator=keyed_generator(b"start"),
        steps=120,
    )
    assert found.epsilon <= start.epsilon <= 1.0
    before = float(start.workload_variance(W).max())
    assert float(found.workload_variance(W).max()) < 0.95 * before
    # a constant changes no variance
    centred = found.workload_variance(W - W.mean(1, keepdim=True))
    torch.testing.assert_close(
        centred,
        found.workload_variance(W),
        rtol=1e-8,
        atol=1e-10,
    )


def test_the_worst_query_under_a_prior():
    W = workloads.prefix(6).dense()
    prior = torch.arange(1.0, 7.0).double() / 21
    start = StrategyMatrix.tuned(
        W,
        1.0,
        prior,
        generator=keyed_generator(b"start"),
        steps=60,
    )
    found = start.improved(W, prior, Objective.WORST, 60)
    after = found.workload_variance(W) @ prior
    before = start.workload_variance(W) @ prior
    assert found.epsilon <= start.epsilon
    assert float(after.max()) < 0.98 * float(before.max())


@pytest.mark.parametrize("epsilon", [1e-3, 5.0, 30.0])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e100])
@pytest.mark.parametrize("prior", [None, [1 - 1e-6, 1e-6]])
def test_few_types_any_size_and_large_epsilons_keep_numbers(epsilon, size, prior):
    W = size * workloads.prefix(2).dense()
    W = torch.cat([W, -W]) - size / 2
    prior = None if prior is None else torch.tensor(prior).double()
    generator = keyed_generator(b"start")
    for objective in Objective:
        found = StrategyMatrix.tuned(W, epsilon, prior, objective, generator=generator, steps=40)
        assert found.epsilon <= epsilon
        # that of randomized response, the best for two types
        expected = response(2, epsilon).judged(W / size, prior, objective)
        assert found.judged(W / size, prior, objective) <= 1.01 * expected


@torch.no_grad()
def test_what_cannot_be_improved_is_returned():
    start = response(4, 1.0)
    assert start.improved(torch.eye(4).double(), None, Objective.WORST, 3) is start
