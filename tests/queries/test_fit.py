"""Fitted histograms: the likelihood's maximum within the stated gap, the nearest ones, and a lower
error.
"""

import math
import warnings

import pytest
import torch
from laws import counts_of, float64, sampled, uniform
from responses import nested

from torchdp import workloads
from torchdp.collection.comparison import difference
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.protocol import Tally
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    Fit,
    FittedOracle,
    LocalFactorization,
    LocalOracle,
    fitted,
)
from torchdp.queries.likelihood import (
    convolved,
    expected,
    judged,
    most_likely,
    response,
    smoothers,
)
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
)
from torchdp.randomness import keyed_generator

K = 16
N = 5_000
PREFIX = workloads.prefix(K).dense()
CLIENTS = {
    "response": RandomizedResponse(K, 2.0),
    "Hadamard": HadamardResponse(K, 2.0),
    "square wave": ShiftStrategy.square_wave(K, 2.0),
    "nested": nested(K, 2.0),
    "bits": OptimizedUnaryEncoding(K, 2.0),
    "subsets": SubsetSelection(K, 2.0),
}
LISTED = {name: client for name, client in CLIENTS.items() if name not in ("bits", "subsets")}
clients = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
listed = pytest.mark.parametrize("client", LISTED.values(), ids=LISTED)


def uneven(seed: bytes, *shape: int) -> torch.Tensor:
    h = uniform(*shape, name=seed) ** 4
    return h / h.sum(-1, keepdim=True)


def smooth(k: int = K) -> torch.Tensor:
    x = (torch.arange(k) + 0.5) / k
    exponents = -(((x - 0.4) / 0.2) ** 2)
    return (N * torch.softmax(exponents, 0)).round().long()


def mean_square(error: torch.Tensor) -> float:
    return float(error.square().mean())


@listed
def test_distributions_are_those_that_reports_decode(client):
    Q = client.laws(torch.arange(K))
    torch.testing.assert_close(Q.sum(1), torch.ones(K, dtype=torch.float64), rtol=0, atol=1e-12)
    logs = Q.log()
    spent = float((logs.amax(0) - logs.amin(0)).max())
    assert spent == pytest.approx(client.guarantee.epsilon, abs=1e-9)
    h = uneven(b"shares", 2, 3, K)
    values = uneven(b"values", 2, 3, len(Q.mT))
    torch.testing.assert_close(client.mixed(h), h @ Q, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(client.gathered(values), values @ Q.mT, rtol=1e-12, atol=1e-14)
    decoded = client.totals(Tally(1, {"reports": Q}))
    torch.testing.assert_close(decoded, torch.eye(K, dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("width", [0, 1, 5])
def test_square_wave_is_what_was_published(width):
    client = ShiftStrategy.square_wave(9, 1.5, width)
    Q = client.laws(torch.arange(9)).mT  # (outputs, types)
    # reports lie on a circle, whose ends are neighbours
    circle = len(Q)
    near = [
        [min((y - x) % circle, (x - y) % circle) <= width for x in range(9)] for y in range(circle)
    ]
    law = float64([[math.exp(1.5 * each) for each in row] for row in near])
    torch.testing.assert_close(Q, law / law.sum(0), rtol=1e-12, atol=0)
    assert client.guarantee.epsilon <= 1.5


def best(Q: torch.Tensor, reports: torch.Tensor) -> float:
    """The largest log likelihood of a histogram, by a solver of other people."""
    cp = pytest.importorskip("cvxpy")
    x = cp.Variable(Q.shape[1], nonneg=True)
    likelihood = reports.numpy() @ cp.log(Q.numpy() @ x)
    problem = cp.Problem(cp.Maximize(likelihood), [cp.sum(x) == 1])
    problem.solve(solver=cp.CLARABEL)
    return problem.value


def test_a_fit_that_was_stopped_warns(monkeypatch):
    protocol = LocalOracle(PREFIX, ShiftStrategy.square_wave(K, 1.0))
    tally = protocol.sample_tally(smooth(), generator=keyed_generator(b"stopped"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(fitted(protocol, tally).gap) < 10
    monkeypatch.setattr("torchdp.queries.likelihood.PRODUCTS", 3)
    monkeypatch.setattr("torchdp.queries.fit.OPEN", 0.2)
    with pytest.warns(
        UserWarning,
        match=r"may be likelier by .* nats \(gap\); ask for fewer types",
    ):
        assert float(fitted(protocol, tally).gap) > 0.2


@listed
def test_guarantee_a_fit_lacks_at_most_its_gap(client):
    tally = client.sample_tally(smooth(), generator=keyed_generator(b"gap"))
    found = fitted(LocalOracle(PREFIX, client), tally, ordered=False)
    reports = tally["reports"].double()
    Q = client.laws(torch.arange(K)).mT
    plain, gap = most_likely(client, reports[None], torch.full((1, K), 1 / K).double())
    reached = reports @ (Q @ plain[0]).log()
    lack = best(Q, reports) - float(reached)
    assert lack <= float(gap) + 1e-4
    assert float(found.gap) <= 0.1


def test_a_single_step_moves_as_the_degrees_of_freedom_say():
    """n tr A Cov(h, u) with dh/df by differences of refitted reports: the formula's definition."""
    k = 6
    client = ShiftStrategy.square_wave(k, 2.0)
    Q = client.laws(torch.arange(k)).mT
    S = convolved(torch.eye(k).double(), smoothers(k, Q.device)[3])
    h = torch.full((1, k), 1 / k, dtype=torch.float64)
    f = (Q @ uneven(b"truth", k)).unsqueeze(0)

    def refitted(f: torch.Tensor) -> torch.Tensor:
        found = h
        # to the fixed point, from even shares
        for _ in range(4000):
            found = (found * expected(client, f, found)[0]) @ S
        return found / found.sum(-1, keepdim=True)

    at = refitted(f)
    # central differences are right to the square of the step
    step = 1e-6
    p = at @ Q.mT
    e = step * torch.eye(len(Q)).double()
    moved = (refitted(f + e) - refitted(f - e)) / (2 * step)
    # of one user's reports, types fixed
    spread = torch.diag(p[0]) - (Q * at) @ Q.mT
    M = Q.mT @ (Q / p.mT)
    # of least variance
    decoder = torch.linalg.solve(M, Q.mT / p)
    A = torch.linalg.pinv(decoder @ spread @ decoder.mT, rtol=1e-9)
    traced = float((A @ moved.mT @ spread @ decoder.mT).trace())
    followed = (response(M[None], at, S)[0] * M).sum() - 1
    assert float(followed) == pytest.approx(traced, rel=0.1, abs=0.05)


RARE = {
    "response": RandomizedResponse(4, 5.0),
    "strategy": StrategyMatrix(RandomizedResponse(4, 5.0).laws(torch.arange(4)).mT),
    "Hadamard": HadamardResponse(4, 5.0),
}


@pytest.mark.parametrize("client", RARE.values(), ids=RARE)
def test_covariances_count_types_that_one_report_brings_in(client):
    """All users of one type, every tally listed: tr Cov(W h, W u) is that which is stated."""
    n = 12
    W = workloads.prefix(4).dense()
    protocol = LocalOracle(W, client)
    p = client.laws(torch.tensor([1]))[0]
    reports = tallies(n, len(p))
    logs = math.lgamma(n + 1) - torch.lgamma(reports.double() + 1).sum(1)
    chances = (logs + reports.double() @ p.log()).exp()
    likely = chances > 1e-9
    reports = reports[likely]
    chances = chances[likely] / chances[likely].sum()
    assert len(reports) > 20
    found = fitted(protocol, Tally(n, {"reports": reports}), ordered=False)
    even = torch.full((len(reports), 4), 1 / 4).double()
    plain, _ = most_likely(client, reports.double(), even)
    answers = plain @ W.mT
    unbiased = found.unbiased.value
    true = float(chances @ ((answers - chances @ answers) * (unbiased - chances @ unbiased)).sum(1))
    _, _, stated = judged(client, reports.double(), plain[None], W)
    assert float(chances @ stated[0]) == pytest.approx(true, rel=0.15, abs=1e-6)
    if p.max() > 0.9:  # one message for each type: these stay where no type is counted
        variance = float(chances @ (unbiased - chances @ unbiased).square().sum(1))
        assert true > 0.7 * variance


def tallies(n: int, outputs: int) -> torch.Tensor:
    """All ways in which n users send so many messages."""
    if outputs == 1:
        return torch.tensor([[n]])
    rows = []
    for first in range(n + 1):
        others = tallies(n - first, outputs - 1)
        rows.append(torch.cat([torch.full((len(others), 1), first), others], 1))
    return torch.cat(rows)


EXPECTED_LESS_THAN_ONCE = {
    "response": lambda: RandomizedResponse(32, 8.0),
    "strategy": lambda: StrategyMatrix(RandomizedResponse(32, 8.0).laws(torch.arange(32)).mT),
    "shifts": lambda: ShiftStrategy.square_wave(32, 8.0, 0),
}


@pytest.mark.parametrize("client", EXPECTED_LESS_THAN_ONCE.values(), ids=EXPECTED_LESS_THAN_ONCE)
def test_rare_messages_do_not_make_the_fit_worse(client):
    """All users of one type, each other message expected less than once: twice the squared error
    where the degrees of freedom of the types that came alone stand for the covariance.
    """
    W = workloads.prefix(32).dense()
    protocol = LocalOracle(W, client())
    counts = torch.zeros(32, dtype=torch.int64)
    counts[10] = 300
    tally = protocol.sample_tally(counts, generator=keyed_generator(b"rare"), sample_shape=(40,))
    found = fitted(protocol, tally)
    truth = protocol.exact(counts)
    errors = []
    for answers in (found.value, found.unbiased.value):
        errors.append(float((answers - truth).square().mean()))
    assert errors[0] < errors[1]


@clients
def test_a_batch_is_its_loop(client):
    protocol = LocalOracle(PREFIX, client)
    tally = protocol.sample_tally(
        smooth(),
        generator=keyed_generator(b"batch"),
        sample_shape=(2, 2),
    )
    found = fitted(protocol, tally)
    assert found.value.shape == (2, 2, K)
    for place in ((0, 1), (1, 0)):
        alone = fitted(
            protocol,
            Tally(tally.n, {"reports": tally["reports"][place]}),
        )
        torch.testing.assert_close(found.value[place], alone.value, rtol=0, atol=1e-9)
        assert alone.weights.sum() == pytest.approx(1)
        assert alone.gap.shape == ()


@clients
def test_the_error_is_lower_than_that_of_the_nearest_answers(client):
    """In geometric mean over a smooth shape, an even one and an uneven one; a single shape may
    lose.
    """
    protocol = LocalOracle(PREFIX, client)
    ratios = []
    for counts in (
        smooth(),
        torch.full((K,), N // K),
        (N * uneven(b"shape", K)).round().long(),
    ):
        tally = protocol.sample_tally(counts, **sampled(20, b"error"))
        found = fitted(protocol, tally)
        answers = protocol.analyse(tally).value
        nearest, _ = nearest_histogram(PREFIX.mT @ PREFIX, answers @ PREFIX, 1e-8)
        shares = counts.double() / counts.sum()
        for seen in (torch.eye(K).double(), PREFIX):
            mine = mean_square((found.histogram - shares) @ seen.mT)
            theirs = mean_square((nearest - shares) @ seen.mT)
            ratios.append(math.log(mine / theirs) / 2)
    assert sum(ratios) / len(ratios) < math.log(0.9)


def test_users_of_one_type_are_seen_by_the_answers_of_a_strategy():
    """The nearest answers have three quarters of the unbiased error; likely ones alone nearly all."""
    client = ShiftStrategy.tuned(PREFIX, 6.0, generator=keyed_generator(b"one type"))
    protocol = LocalOracle(PREFIX, client)
    counts = torch.zeros(K, dtype=torch.int64)
    counts[K // 3] = 30_000
    tally = protocol.sample_tally(counts, **sampled(60, b"one type"))
    found = fitted(protocol, tally)
    answers = found.unbiased.value
    nearest, _ = nearest_histogram(PREFIX.mT @ PREFIX, answers @ PREFIX, 1e-8)
    truth = protocol.exact(counts)
    mine = mean_square(found.value - truth)
    assert mine < 1.22**2 * mean_square(nearest @ PREFIX.mT - truth)
    assert mine < 0.93**2 * mean_square(answers - truth)


REPORTED = {
    "response": lambda epsilon: RandomizedResponse(K, epsilon),
    "subsets": lambda epsilon: SubsetSelection(K, epsilon),
    "square wave": lambda epsilon: ShiftStrategy.square_wave(K, epsilon),
}
reported = pytest.mark.parametrize("client", REPORTED.values(), ids=REPORTED)


@reported
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("types", [[0, 1, 1, 9, 15], [7], list(range(K))])
def test_exact_reports_are_the_fit(client, ordered, types):
    protocol = LocalOracle(PREFIX, client(40.0))
    counts = torch.bincount(torch.tensor(types), minlength=K)
    tally = protocol.sample_tally(counts, generator=keyed_generator(b"exact"))
    exact = protocol.exact(counts)
    found = fitted(protocol, tally, ordered=ordered)
    torch.testing.assert_close(found.value, exact, rtol=0, atol=1e-6)
    # where reports say little the same users' fit is another
    vague = LocalOracle(PREFIX, client(1.0))
    tally = vague.sample_tally(counts, generator=keyed_generator(b"exact"))
    assert float((fitted(vague, tally, ordered=ordered).value - exact).abs().max()) > 0.01


@reported
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0])
def test_no_answer_is_estimated_to_be_worse_than_the_unbiased_one(client, epsilon):
    """Its squared distance to the unbiased answers is below twice their variance, but for what
    consistency adds.
    """
    protocol = LocalOracle(PREFIX, client(epsilon))
    rough = (N * uneven(b"risk", K)).round().long()
    refused = []
    for some in (smooth(), rough):
        tally = protocol.sample_tally(some, **sampled(5, b"risk"))
        found = fitted(protocol, tally)
        unbiased = protocol.analyse(tally)
        nearest, _ = nearest_histogram(PREFIX.mT @ PREFIX, unbiased.value @ PREFIX, 1e-10)
        moved = nearest @ PREFIX.mT - unbiased.value
        consistent = moved.norm(dim=-1)
        distance = (found.value - unbiased.value).norm(dim=-1)
        variance = unbiased.standard_error.square().sum(-1)
        assert bool((distance <= (2 * variance).sqrt() + consistent + 1e-6).all())
        scores = protocol.fits(tally, True)[1]
        weights = found.weights[..., :-1].mT
        assert bool((weights[scores < 0] == 0).all())
        refused.append(bool((scores < 0).any()))
    # the rule is at work where reports say much
    assert any(refused) or epsilon < 4


@pytest.mark.parametrize("name", ["response", "Hadamard"])
def test_reports_that_say_little_are_projected(name):
    """The fit by EM alone stays near even shares, from 64 types at epsilon 1."""
    k = 64
    n = 100_000
    kinds = {
        "response": RandomizedResponse,
        "Hadamard": HadamardResponse,
    }
    x = torch.arange(0.5, k).double() / k
    # most users near one end
    h = x**4 * (1 - x)
    counts = counts_of(h, n)
    W = workloads.prefix(k).dense()
    protocol = LocalOracle(W, kinds[name](k, 1.0))
    tally = protocol.sample_tally(counts, **sampled(8, b"little"))
    found = fitted(protocol, tally)
    truth = protocol.exact(counts)
    even = torch.full((8, k), 1 / k, dtype=torch.float64)
    reports = tally["reports"].double()
    likely = most_likely(protocol.client, reports, even)[0] @ W.mT
    errors = [mean_square(each - truth) for each in (found.value, found.unbiased.value, likely)]
    assert errors[0] < errors[1]
    assert errors[0] < errors[2]


def test_even_shares_are_a_fit():
    k = 64
    W = workloads.prefix(k).dense()
    protocol = LocalOracle(W, ShiftStrategy.square_wave(k, 1.0))
    counts = torch.full((k,), 200)
    tally = protocol.sample_tally(counts, **sampled(8, b"even"))
    found = fitted(protocol, tally)
    truth = protocol.exact(counts)
    assert float((found.value - truth).square().mean().sqrt()) < 0.01
    assert float(found.weights[:, 0].mean()) > 0.1


VECTORS = {
    "local": LocalFactorization.calibrated(FactoredQueries.identity(PREFIX), epsilon=4.0),
    "central": CentralFactorization(FactoredQueries.plain(PREFIX), 0.02, 1e-6),
}


@pytest.mark.parametrize("protocol", VECTORS.values(), ids=VECTORS)
def test_noisy_vectors_are_fitted_in_the_metric_of_their_noise(protocol):
    cp = pytest.importorskip("cvxpy")
    tally = protocol.sample_tally(smooth(), **sampled(30, b"vectors"))
    plain = fitted(protocol, tally, ordered=False)
    found = fitted(protocol, tally, ordered=True)
    nearest = protocol.fits(tally, False)[0][-1, 0]
    h = cp.Variable(K, nonneg=True)
    right = protocol.queries.right.numpy()
    means = tally["sum"][0].numpy() / tally.n
    away = cp.sum_squares(right @ h - means)
    problem = cp.Problem(cp.Minimize(away), [cp.sum(h) == 1])
    problem.solve(solver=cp.CLARABEL)
    torch.testing.assert_close(
        torch.from_numpy(h.value) @ PREFIX.mT,
        nearest @ PREFIX.mT,
        rtol=0,
        atol=2e-4,
    )
    counts = smooth().double()
    truth = PREFIX @ counts / counts.sum()
    fits = (found.value, plain.value, plain.unbiased.value)
    errors = [mean_square(each - truth) for each in fits]
    assert errors[0] < 0.6 * errors[2]
    assert errors[1] < errors[2]
    assert found.weights.shape[1] > 4
    assert plain.weights.shape == (30, 2)


@clients
def test_intervals_are_those_of_the_unbiased_estimate(client):
    protocol = LocalOracle(PREFIX, client)
    tally = client.sample_tally(smooth(), generator=keyed_generator(b"intervals"))
    found = FittedOracle(PREFIX, client).analyse(tally)
    unbiased = protocol.analyse(tally)
    assert isinstance(found, Fit)
    assert not torch.equal(found.value, unbiased.value)
    for one, two in zip(found.interval(0.9), found.unbiased.interval(0.9), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    torch.testing.assert_close(found.centre, found.unbiased.value, rtol=0, atol=0)
    torch.testing.assert_close(
        difference(found, found).value,
        torch.zeros(K, dtype=torch.float64),
    )
    assert float((found.unbiased.value - unbiased.value).abs().max()) < 0.2


def test_a_fit_of_many_types_is_that_of_few():
    """Of merged types whose reports are known; the strengths are shares of the interval."""
    client = ShiftStrategy.square_wave(256, 2.0)
    exponents = -(((torch.arange(256) / 256 - 0.4) / 0.2) ** 2)
    counts = (20_000 * torch.softmax(exponents, 0)).round().long()
    W = workloads.prefix(256).dense()
    tally = client.sample_tally(counts, **sampled(2, b"many"))
    found = fitted(LocalOracle(W, client), tally)
    truth = W @ counts.double() / counts.sum()
    # the same reports by matrix products
    dense = StrategyMatrix(client.laws(torch.arange(256)).mT)
    again = fitted(LocalOracle(W, dense), tally)
    torch.testing.assert_close(found.value, again.value, rtol=0, atol=1e-3)
    assert mean_square(found.value - truth) < 0.5 * mean_square(found.unbiased.value - truth)


def test_degenerate_reports():
    client = RandomizedResponse(K, 1.0)
    reports = torch.zeros(K, dtype=torch.int64)
    reports[3] = 1000
    for ordered in (False, True):
        found = fitted(
            LocalOracle(PREFIX, client),
            Tally(1000, {"reports": reports}),
            ordered=ordered,
        )
        assert float(found.histogram[3]) > 0.99
    two = LocalOracle(torch.eye(2).double(), RandomizedResponse(2, 1.0))
    found = fitted(two, Tally(10, {"reports": torch.tensor([10, 0])}))
    assert found.weights.shape == (2,)
    one = fitted(
        LocalOracle(PREFIX, CLIENTS["nested"], adapted=True),
        CLIENTS["nested"].collect(torch.tensor([5])),
    )
    assert one.value.isfinite().all()
