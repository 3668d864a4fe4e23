"""Every strategy over steps, by one table: its noise, parts, state and interrupts, and what a user
moves under it.

A new strategy is an entry of ``STRATEGIES``: a function of the number of steps, and rows of state
that it may hold.
"""

import itertools
import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from laws import normal, stored
from rules import permitted

from torchdp.factorization import (
    BandedStrategy,
    BufferedStrategy,
    RecalledStrategy,
    Recurrence,
    StreamStrategy,
)
from torchdp.factorization.streams.recurrence import off_by
from torchdp.factorization.streams.strategy import Tabulated
from torchdp.kernels import chacha
from torchdp.kernels.correlated_noise import reference
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import (
    ONCE,
    CorrelatedNoise,
    CyclicPoisson,
    Epochs,
    Iterates,
    Separated,
    replicas,
    sensitivity,
    standard_errors,
    stream,
)

SIZE = 7
SIGMA = 1.5
CPU = torch.device("cpu")
ZERO = torch.zeros(SIZE, dtype=torch.float64)
SECOND = torch.tensor([[1.0, 0.5, 0.2]], dtype=torch.float64)


@dataclass(frozen=True)
class InverseRoot(StreamStrategy):
    """C^{-1}: the first coefficients of sqrt(1 - x), the inverse of a square root of prefix sums; z
    is drawn again.

    Source: Kalinin, McKenna, Upadhyay, Lampert (2025), banded inverse square root.
    """

    steps: int
    width: int

    def tabulated(self):
        j = torch.arange(1, self.width, dtype=torch.float64)
        c = torch.cat([torch.ones(1, dtype=torch.float64), (1 - 1.5 / j).cumprod(0)])
        return Recurrence(self.steps, torch.ones(1), c[None], tuple(range(self.width)))


@dataclass(frozen=True)
class Regenerated(StreamStrategy):
    """w_t = z_t - share z_{t-1}. Source: Kalinin, McKenna, Pagh, Lampert (2026), DP-lambda-CGD."""

    steps: int
    share: float

    def tabulated(self):
        return Recurrence(self.steps, torch.ones(1), torch.tensor([[1.0, -self.share]]), (0, 1))


def uniform(name, *shape):
    return torch.rand(*shape, generator=keyed_generator(name), dtype=torch.float64)


def buffered(n):
    places = 0.02 + 0.96 * uniform(b"places %d" % n, 6).sort(descending=True).values
    return BufferedStrategy(places[0::2], places[1::2], *(0.2 + uniform(b"diagonals", 2, n)))


def inverse(n):
    """C of momentum, decay and changing rates: the last z are kept, as u."""
    B = Iterates(n, 0.7, 0.05, (0.1 + uniform(b"rates", n)).tolist()).inverse()
    return Tabulated(Recurrence(n, 1 / B[:, 0], torch.ones(1, 1), of_u=B[:, 1:] / B[:, :1]))


def anything(n):
    """Tables of every kind at once, of numbers of either sign."""
    g = normal(4, n, 3, name=b"anything") / 4
    feeds = torch.cat([0.6 + g[0, :, :1].abs(), g[0, :, 1:]], 1)
    rates = {"gains": g[1, :1, :2].flatten(), "decays": -g[1, :1, :2].flatten().abs()}
    return Tabulated(
        Recurrence(
            n, 0.5 + g[1, :, 2].abs(), feeds, (0, 1, 3), **rates, of_w=g[2], of_u=g[3, :1, :2]
        )
    )


STRATEGIES = {
    "independent": (lambda n: BandedStrategy(torch.ones(1, 1), n), 0),
    "one row": (lambda n: BandedStrategy(torch.tensor([[2.0, -0.7, 0.4]]), n), 2),
    "falling row": (lambda n: BandedStrategy(SECOND, n), 2),
    "gap in a row": (lambda n: BandedStrategy(torch.tensor([[1.0, 0.0, 1.0]]), n), 2),
    "rows": (lambda n: BandedStrategy(normal(n, 2, name=b"rows").abs() + 0.1, n), 1),
    "dense": (
        lambda n: BandedStrategy.of(normal(n, n, name=b"dense").tril() + 3 * torch.eye(n)),
        5,
    ),
    "buffered": (buffered, 3),
    "recalled": (
        lambda n: RecalledStrategy(buffered(n), 2, normal(2, n, name=b"recalled").abs() + 0.5),
        3,
    ),
    "inverse": (inverse, 2),
    "inverse root": (lambda n: InverseRoot(n, min(n, 4)), 0),
    "regenerated": (lambda n: Regenerated(n, 0.6), 0),
    "anything": (anything, 7),
}
ALL = pytest.mark.parametrize(("make", "memory"), STRATEGIES.values(), ids=STRATEGIES)


def noise_of(C, seed=1, size=SIZE, **options):
    return CorrelatedNoise(
        C, size, SIGMA, **{"noise": SeededNoise(seed), "dtype": torch.float64, **options}
    )


def run(noise, steps=None):
    zero = torch.zeros(noise.size, dtype=torch.float64)
    return torch.stack(
        [noise(zero) for _ in range(noise.steps - noise.step if steps is None else steps)]
    )


def exact(C):
    """C in fractions: its inverse by the recurrence as it is written, on unit vectors, inverted."""
    tables = C.recurrence
    n = C.steps

    def at(name, t):
        table = getattr(tables, name)
        return [Fraction(x) for x in (table[t if len(table) > 1 else 0]).reshape(-1).tolist()]

    gains, decays = ([Fraction(x) for x in y.tolist()] for y in (tables.gains, tables.decays))
    backward = [[Fraction(0)] * n for _ in range(n)]
    for column in range(n):
        s = [Fraction(0)] * len(gains)
        us = []
        ws = []
        for t in range(n):
            u = sum(
                (
                    f
                    for f, lag in zip(at("feeds", t), tables.lags, strict=True)
                    if t - lag == column
                ),
                Fraction(0),
            )
            w = u + sum(a * b for a, b in zip(gains, s, strict=True))
            w += sum(c * ws[t - 1 - j] for j, c in enumerate(at("of_w", t)) if j < t)
            w += sum(c * us[t - 1 - j] for j, c in enumerate(at("of_u", t)) if j < t)
            s = [(1 + d) * x + u for d, x in zip(decays, s, strict=True)]
            us.append(u)
            ws.append(w / at("scale", t)[0])
            backward[t][column] = ws[t]
    found = [[Fraction(0)] * n for _ in range(n)]
    for t, column in itertools.product(range(n), range(n)):
        rest = sum(backward[t][k] * found[k][column] for k in range(t))
        found[t][column] = (Fraction(int(t == column)) - rest) / backward[t][t]
    return found


@ALL
def test_guarantee_noise_has_the_law_of_its_strategy(make, memory):
    """C w = sigma z, z from the cipher: the covariance is sigma^2 (C^T C)^-1. C is the tables' own,
    to its rounding.
    """
    C = make(6)
    key = chacha.key_of(SeededNoise(1).words((4,)).numpy().tobytes(), CPU)
    matrix = C.dense()
    z = torch.stack([reference.normals(key, t, 0, SIZE) for t in range(6)])
    drawn = run(noise_of(C))
    torch.testing.assert_close(matrix @ drawn, SIGMA * z, rtol=1e-11, atol=1e-11)
    # the control
    assert ((matrix + 0.01 * torch.eye(6)) @ drawn - SIGMA * z).abs().max() > 1e-3
    assert noise_of(C).secret_state()["past"].shape == (memory, SIZE)
    torch.testing.assert_close(
        run(noise_of(C, dtype=torch.float32)).double(), drawn, rtol=1e-4, atol=1e-4
    )
    truth = exact(C)
    rounding = C.recurrence.dense()[1]
    for column in range(6):
        off = sum((Fraction(float(matrix[t, column])) - truth[t][column]) ** 2 for t in range(6))
        assert off <= Fraction(float(rounding[column])) ** 2
    torch.testing.assert_close(C.leading(4).dense(), matrix[:4, :4])
    assert (
        C.to(CPU).recurrence.digest() == C.recurrence.digest() != C.leading(5).recurrence.digest()
    )


@pytest.mark.parametrize(("n", "a", "b"), [(60, 0.9, 0.5), (90, 0.99, -0.9), (90, 0.99, 0.9)])
def test_guarantee_rounding_of_terms_that_cancel_is_in_the_sensitivity_and_hides_nothing_else(
    n, a, b
):
    """C^{-1} = (1 - a x)(1 - b x), whose last coefficient may be positive: bounds by sizes grow as
    1.3^n or more.
    """
    of_u = torch.tensor([[-(a + b), a * b]], dtype=torch.float64)
    C = Tabulated(Recurrence(n, torch.ones(1), torch.ones(1, 1), of_u=of_u))
    c, (p, q) = [Fraction(0), Fraction(1)], (Fraction(x) for x in of_u[0].tolist())
    while len(c) <= n:
        c.append(-p * c[-1] - q * c[-2])
    truth, (matrix, rounding) = c[1:], C.recurrence.dense()
    for column in range(0, n, 10):
        off = sum(
            (Fraction(float(matrix[t, column])) - truth[t - column]) ** 2 for t in range(column, n)
        )
        assert off <= Fraction(float(rounding[column])) ** 2
    user = [sum(truth[t - i] for i in range(0, t + 1, 20)) for t in range(n)]
    moved = sum(x * x for x in user)
    found = sensitivity(C, Epochs(20))
    assert found.exact
    assert moved <= Fraction(found.value) ** 2 <= moved * (1 + Fraction(1, 10**8))
    V = torch.linalg.inv(matrix)
    bound = off_by(torch.eye(n).double(), V, V.abs(), torch.eye(n).double(), 1.001 * matrix)
    torch.testing.assert_close(bound, 0.001 * matrix.norm(dim=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_guarantee_rounding_of_running_numbers_that_cancel_is_bounded(size):
    rates = torch.tensor([[size, -size], [-0.3, -0.3 - 1 / size / 3]], dtype=torch.float64)
    C = Tabulated(Recurrence(8, torch.ones(1), torch.ones(1, 1), gains=rates[0], decays=rates[1]))
    truth, (matrix, rounding) = exact(C), C.recurrence.dense()
    for column in range(8):
        off = sum((Fraction(float(matrix[t, column])) - truth[t][column]) ** 2 for t in range(8))
        assert off <= Fraction(float(rounding[column])) ** 2


@ALL
def test_guarantee_no_set_and_no_signs_move_further_than_the_sensitivity(make, memory):
    """In fractions, over every set of 5 steps and every sign, without a tolerance; what is
    attained, and exact, is.
    """
    C = make(5)
    truth = exact(C)
    for user in (
        ONCE,
        Epochs(2),
        Epochs(3),
        Separated(1, 2),
        Separated(2, 2),
        Separated(2, 3),
        Separated(3, 9),
    ):
        most = Fraction(0)
        for chosen in permitted(user, 5):
            for signs in itertools.product((1, -1), repeat=len(chosen) - 1):
                rows = [
                    sum(s * row[c] for s, c in zip((1, *signs), chosen, strict=True))
                    for row in truth
                ]
                most = max(most, sum(x * x for x in rows))
        found = sensitivity(C, user)
        assert Fraction(found.value) ** 2 >= most
        assert Fraction(found.attained) ** 2 <= most * (1 + Fraction(1, 10**15))
        assert not found.exact or math.isclose(found.value, math.sqrt(most), rel_tol=1e-8)
        formed = sensitivity(C.dense(), user)
        assert found.exact or not formed.exact
    assert found.exact or make in (STRATEGIES["recalled"][0], anything)


@ALL
@pytest.mark.parametrize("cuts", [(0, 7, 40), (0, 16, 17, 33, 40)])
def test_parts_hold_the_numbers_of_the_whole(make, memory, cuts, monkeypatch):
    monkeypatch.setattr(stream, "AT_ONCE", 16)
    whole = run(noise_of(make(6), size=40))
    parts = [run(noise_of(make(6), size=b - a, shard=(a, 40))) for a, b in itertools.pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-13)
    assert len(whole.unique()) == whole.numel()


@ALL
def test_the_secret_state_resumes_the_stream_and_skipped_steps_are_spent(make, memory):
    whole = run(noise_of(make(6)))
    noise = noise_of(make(6))
    late = noise_of(make(6))
    for stop in (0, 1, 4):
        run(noise, stop - noise.step) if stop else None
        public, secret = stored((noise.state_dict(), noise.secret_state()))
        fresh = noise_of(make(6), seed=2)
        fresh.load_state_dict(public)
        fresh.load_secret_state(secret)
        assert torch.equal(run(fresh), whole[stop:])
    late.skip(3)
    assert late.step == 3
    assert torch.equal(run(late, 1), whole[3:4])
    late.skip(5)
    assert torch.equal(run(late), whole[5:])
    with pytest.raises(RuntimeError, match="all 6 steps of the strategy are spent"):
        late(ZERO)
    other = BandedStrategy(torch.tensor([[1.0, 0.1]]), 6)
    others = [
        noise_of(make(5)),
        noise_of(other),
        noise_of(make(6), size=6),
        noise_of(make(6), dtype=torch.float32),
    ]
    for noise in (*others, CorrelatedNoise(make(6), SIZE, 2.0, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"of another (strategy|part)"):
            noise.load_secret_state(secret)


def interrupted(lines, call, handler=lambda: None):
    """Whether ``call()`` was interrupted, which is done at these lines of the stream's code,
    counted from 0.
    """
    hits = 0

    def trace(frame, event, _):
        nonlocal hits
        if frame.f_code.co_filename != stream.__file__:
            return None
        if event == "line":
            hits += 1
            if hits - 1 in lines:
                handler()
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


@pytest.mark.parametrize(("name", "drawn"), [("independent", 0), ("recalled", 0), ("anything", 1)])
def test_an_interrupted_step_is_spent_or_not_begun(name, drawn, monkeypatch):
    """An exception at each line of a step in turn, and in what finishes it; a handler that draws.

    The noise keeps its distribution, and none is seen twice. The numbers are made four and three at a time.
    """
    monkeypatch.setattr(stream, "AT_ONCE", 4)
    C = STRATEGIES[name][0](5)
    given = iter(range(10**6))
    expected = run(noise_of(C))
    for line in itertools.count():
        noise = noise_of(C)
        seen = []

        def draw(noise=noise):
            with pytest.raises(RuntimeError, match="while it was drawing"):
                noise(ZERO)

        def step(noise=noise, seen=seen):
            seen.append((noise.step, noise(ZERO)))

        step(), step()
        stopped = interrupted((line,), step, draw if drawn else lambda: None)
        # what finishes it is interrupted, too
        interrupted((next(given) % 23,), step)
        while noise.step < 4:
            step()
        assert len({t for t, _ in seen}) == len(seen) >= 3
        assert all(torch.equal(output, expected[t]) for t, output in seen)
        if not stopped:
            break
    assert line > 25


def test_an_interrupted_load_leaves_one_state_or_the_other():
    C = STRATEGIES["falling row"][0](6)
    parent = noise_of(C)
    run(parent, 3)
    state = parent.secret_state()
    following = run(parent, 1)[0]
    for line in itertools.count():
        noise = noise_of(C, 2)
        stopped = interrupted((line,), lambda noise=noise: noise.load_secret_state(state))
        try:
            drawn = noise(ZERO)
        except RuntimeError:
            assert noise.step == 3
            assert stopped
            continue
        assert noise.step in (1, 4)
        assert torch.equal(drawn, following if noise.step == 4 else noise_of(C, 2)(ZERO))
        if not stopped:
            break
    assert line > 10


def test_no_state_is_loaded_in_the_midst_of_a_step(monkeypatch):
    C = STRATEGIES["falling row"][0](6)
    add = stream.correlated_noise.add
    other = noise_of(C, 2)
    state = noise_of(C).secret_state()

    def handled(*args):
        with pytest.raises(RuntimeError, match="while it was drawing"):
            other.load_secret_state(state)
        add(*args)

    monkeypatch.setattr(stream.correlated_noise, "add", handled)
    assert other(ZERO).isfinite().all()


def test_a_spent_step_stays_spent_whatever_interrupts_its_numbers(monkeypatch):
    C = STRATEGIES["falling row"][0](6)

    def stops(*args):
        raise KeyboardInterrupt

    for line in itertools.count():
        noise = noise_of(C)
        noise(ZERO)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stream.correlated_noise, "add", stops)
            noise(ZERO)
        assert noise.step == 2
        if not interrupted((line,), lambda noise=noise: noise(ZERO)):
            break
        assert noise.step >= 2
    assert line > 10


def test_a_shard_that_is_all_of_a_gradient_is_compared_with_no_other(monkeypatch):
    """A model of one number on several processes: only the first has the sum."""
    compared = []
    monkeypatch.setattr(replicas, "several", lambda: True)
    monkeypatch.setattr(replicas, "from_first", lambda key: key)
    monkeypatch.setattr(
        replicas, "check_agree", lambda step, digest, total: compared.append(len(total))
    )
    for options in ({"shard": (0, 1)}, {}):
        noise_of(BandedStrategy(SECOND, 6), size=1, **options)(torch.zeros(1))
    assert compared == [0, 1]


def test_guarantee_a_million_steps_need_no_matrix():
    n = 10**6
    few = buffered(3)
    ones = torch.ones(n, dtype=torch.float64)
    for C in (
        BandedStrategy(torch.tensor([[1.0, 0.5, 0.3]]), n),
        BufferedStrategy(few.poles, few.zeros, ones, ones),
        InverseRoot(n, 5),
    ):
        noise = CorrelatedNoise(C, 4, 1.0)
        assert noise(torch.zeros(4)).shape == (4,)
        assert noise.steps == n
        own = sensitivity(C, ONCE).value
        for user, times in ((ONCE, 1), (Epochs(n // 8), 8), (Separated(n // 9, 5), 5)):
            found = sensitivity(C, user)
            assert math.isclose(found.value, found.attained, rel_tol=1e-7)
            assert 0.99 * math.sqrt(times) * own < found.value < 1.5 * math.sqrt(times) * own
        assert noise.guarantee(1.0, 1e-6, ONCE).epsilon > 0
    one = BandedStrategy(torch.tensor([[1.0, 0.5, 0.3]]), n)
    assert sensitivity(one, Epochs(1000)).value == pytest.approx(math.sqrt(1000 * 1.34))
    assert CyclicPoisson(3, 0.01).guarantee(one, 20.0, 1.0, 1e-6).epsilon > 0
    with pytest.raises(ValueError, match="of at most 3 bands"):
        CyclicPoisson(3, 0.01).guarantee(C, 20.0, 1.0, 1e-6)
    with pytest.raises(ValueError, match="above 4096"):
        standard_errors(Iterates(n), BufferedStrategy(few.poles, few.zeros, ones, ones))


@ALL
def test_errors_are_those_of_the_matrix(make, memory):
    C = make(6)
    for W in (Iterates(6, 0.9, 0.1), Iterates(6, 0.5, 0.1, [0.5, 0.2, 0.1, 0.7, 0.3, 0.4])):
        rows = torch.linalg.solve_triangular(C.dense(), W.dense(), upper=False, left=False).norm(
            dim=1
        )
        torch.testing.assert_close(standard_errors(W, C), rows, rtol=1e-10, atol=0)


def test_a_strategy_whose_tables_are_of_other_steps_is_refused(monkeypatch):
    monkeypatch.setattr(Regenerated, "tabulated", lambda self: InverseRoot(5, 2).tabulated())
    for use in (
        noise_of,
        lambda C: sensitivity(C, ONCE),
        lambda C: standard_errors(Iterates(4), C),
    ):
        with pytest.raises(ValueError, match=r"tabulated\(\) must be of 4 steps"):
            use(Regenerated(4, 0.5))


def test_tables_are_copies_and_their_digest_names_the_law():
    """Who changes a tensor that a strategy was made of changes no noise and no guarantee."""
    feeds = torch.ones(1, 2, dtype=torch.float64)
    one = torch.ones(1)
    C = Tabulated(Recurrence(3, one, feeds, (0, 1)))
    before = C.recurrence.digest()
    feeds[0, 1] = 9.0
    assert C.recurrence.digest() == before
    assert C.dense()[1, 0] == -1
    others = [
        Recurrence(3, one, one[None], **{name: one[None] / 2}).digest() for name in ("of_w", "of_u")
    ]
    assert len({before, *others}) == 3
