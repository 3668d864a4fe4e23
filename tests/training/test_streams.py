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
from laws import float64, normal, stored, uniform
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
ONE = torch.ones(1)
ZERO = torch.zeros(SIZE, dtype=torch.float64)


@dataclass(frozen=True)
class InverseRoot(StreamStrategy):
    """C^{-1}: the first coefficients of sqrt(1 - x), the inverse of a square root of prefix sums; z
    is drawn again.

    Source: Kalinin, McKenna, Upadhyay, Lampert (2025), banded inverse square root.
    """

    steps: int
    width: int

    def tabulated(self):
        j = torch.arange(self.width, dtype=torch.float64)
        # Each coefficient by the one before it.
        ratios = 1 - 1.5 / j
        ratios[0] = 1.0
        return Recurrence(self.steps, ONE, ratios.cumprod(0)[None], tuple(range(self.width)))


@dataclass(frozen=True)
class Regenerated(StreamStrategy):
    """w_t = z_t - share z_{t-1}. Source: Kalinin, McKenna, Pagh, Lampert (2026), DP-lambda-CGD."""

    steps: int
    share: float

    def tabulated(self):
        return Recurrence(self.steps, ONE, float64([[1.0, -self.share]]), (0, 1))


def row(*coefficients):
    return lambda n: BandedStrategy(float64([coefficients]), n)


def rows(n):
    return BandedStrategy(normal(n, 2, name=b"rows").abs() + 0.1, n)


def dense(n):
    return BandedStrategy.of(normal(n, n, name=b"dense").tril() + 3 * torch.eye(n))


def buffered(n):
    places = 0.02 + 0.96 * uniform(6, name=b"places %d" % n).sort(descending=True).values
    before, after = 0.2 + uniform(2, n, name=b"diagonals")
    return BufferedStrategy(places[0::2], places[1::2], before, after)


def recalled(n):
    return RecalledStrategy(buffered(n), 2, normal(2, n, name=b"recalled").abs() + 0.5)


def inverse(n):
    """C of momentum, decay and changing rates: the last z are kept, as u."""
    rates = 0.1 + uniform(n, name=b"rates")
    B = Iterates(n, 0.7, 0.05, rates.tolist()).inverse()
    scale = B[:, 0]
    return Tabulated(Recurrence(n, 1 / scale, ONE[None], of_u=B[:, 1:] / scale[:, None]))


def anything(n):
    """Tables of every kind at once, of numbers of either sign."""
    g = normal(4, n, 3, name=b"anything") / 4
    feeds = g[0].clone()
    feeds[:, 0] = 0.6 + feeds[:, 0].abs()
    tables = Recurrence(
        n,
        0.5 + g[1, :, 2].abs(),
        feeds,
        (0, 1, 3),
        gains=g[1, 0, :2],
        decays=-g[1, 0, :2].abs(),
        of_w=g[2],
        of_u=g[3, :1, :2],
    )
    return Tabulated(tables)


STRATEGIES = {
    "independent": (row(1.0), 0),
    "one row": (row(2.0, -0.7, 0.4), 2),
    "falling row": (row(1.0, 0.5, 0.2), 2),
    "gap in a row": (row(1.0, 0.0, 1.0), 2),
    "rows": (rows, 1),
    "dense": (dense, 5),
    "buffered": (buffered, 3),
    "recalled": (recalled, 3),
    "inverse": (inverse, 2),
    "inverse root": (lambda n: InverseRoot(n, min(n, 4)), 0),
    "regenerated": (lambda n: Regenerated(n, 0.6), 0),
    "anything": (anything, 7),
}
ALL = pytest.mark.parametrize("name", STRATEGIES)


def strategy(name, n):
    return STRATEGIES[name][0](n)


def falling():
    return strategy("falling row", 6)


def noise_of(C, seed=1, size=SIZE, **options):
    given = {"noise": SeededNoise(seed), "dtype": torch.float64, **options}
    return CorrelatedNoise(C, size, SIGMA, **given)


def run(noise, steps=None):
    zero = torch.zeros(noise.size, dtype=torch.float64)
    left = noise.steps - noise.step
    return torch.stack([noise(zero) for _ in range(left if steps is None else steps)])


def fractions(numbers):
    return [Fraction(x) for x in numbers.reshape(-1).tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=False))


def answer(C, column):
    """A column of C^{-1}: what the recurrence, as it is written, makes of a unit vector."""
    tables = C.recurrence

    def at(name, t):
        table = getattr(tables, name)
        return fractions(table[t if len(table) > 1 else 0])

    gains = fractions(tables.gains)
    decays = fractions(tables.decays)
    s = [Fraction(0)] * len(gains)
    us = []
    ws = []
    for t in range(C.steps):
        drawn = [t - lag == column for lag in tables.lags]
        u = dot(at("feeds", t), drawn)
        w = u + dot(gains, s) + dot(at("of_w", t), ws[::-1]) + dot(at("of_u", t), us[::-1])
        s = [(1 + decay) * x + u for decay, x in zip(decays, s, strict=True)]
        us.append(u)
        ws.append(w / at("scale", t)[0])
    return ws


def exact(C):
    """C in fractions."""
    n = C.steps
    V = [answer(C, column) for column in range(n)]
    found = [[Fraction(0)] * n for _ in range(n)]
    for t, column in itertools.product(range(n), range(n)):
        rest = sum(V[k][t] * found[k][column] for k in range(t))
        found[t][column] = (int(t == column) - rest) / V[t][t]
    return found


def assert_rounded(C, truth, columns):
    """C in float64 is the truth but for the rounding that it states."""
    matrix, rounding = C.recurrence.dense()
    for column in columns:
        off = [
            Fraction(float(x)) - y[column] for x, y in zip(matrix[:, column], truth, strict=True)
        ]
        assert dot(off, off) <= Fraction(float(rounding[column])) ** 2


@ALL
def test_guarantee_noise_has_the_law_of_its_strategy(name):
    """C w = sigma z, z from the cipher: the covariance is sigma^2 (C^T C)^-1."""
    C = strategy(name, 6)
    matrix = C.dense()
    key = chacha.key_of(SeededNoise(1).words((4,)).numpy().tobytes(), CPU)
    z = torch.stack([reference.normals(key, t, 0, SIZE) for t in range(6)])
    w = run(noise_of(C))
    torch.testing.assert_close(matrix @ w, SIGMA * z, rtol=1e-11, atol=1e-11)
    # The control: of another C it is not.
    assert (matrix @ w + 0.01 * w - SIGMA * z).abs().max() > 1e-3
    assert noise_of(C).secret_state()["past"].shape == (STRATEGIES[name][1], SIZE)
    single = run(noise_of(C, dtype=torch.float32))
    torch.testing.assert_close(single.double(), w, rtol=1e-4, atol=1e-4)


@ALL
def test_guarantee_a_matrix_is_the_tables_own_to_its_rounding(name):
    C = strategy(name, 6)
    assert_rounded(C, exact(C), range(6))
    torch.testing.assert_close(C.leading(4).dense(), C.dense()[:4, :4])
    digest = C.recurrence.digest()
    assert C.to(CPU).recurrence.digest() == digest
    assert C.leading(5).recurrence.digest() != digest


@pytest.mark.parametrize(
    ("n", "a", "b"),
    [
        (60, 0.9, 0.5),
        (90, 0.99, -0.9),
        (90, 0.99, 0.9),
    ],
)
def test_guarantee_rounding_of_terms_that_cancel_is_in_the_sensitivity_and_hides_nothing_else(
    n, a, b
):
    """C^{-1} = (1 - a x)(1 - b x), whose last coefficient may be positive: bounds by sizes grow as
    1.3^n or more.
    """
    of_u = float64([[-(a + b), a * b]])
    C = Tabulated(Recurrence(n, ONE, ONE[None], of_u=of_u))
    p, q = fractions(of_u)
    column = [Fraction(0), Fraction(1)]
    while len(column) <= n:
        column.append(-p * column[-1] - q * column[-2])
    column = column[1:]
    truth = [[column[t - j] if t >= j else 0 for j in range(n)] for t in range(n)]
    assert_rounded(C, truth, range(0, n, 10))
    user = [sum(row[::20]) for row in truth]
    moved = dot(user, user)
    # Too large a rounding would be no proof, too small a wrong one.
    found = sensitivity(C, Epochs(20))
    assert found.exact
    assert moved <= Fraction(found.value) ** 2 <= moved * (1 + Fraction(1, 10**8))
    # Of a C that differs by a thousandth, all of the difference is rounding.
    matrix = C.dense()
    eye = torch.eye(n).double()
    V = torch.linalg.inv(matrix)
    bound = off_by(eye, V, V.abs(), eye, 1.001 * matrix)
    torch.testing.assert_close(bound, 0.001 * matrix.norm(dim=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_guarantee_rounding_of_running_numbers_that_cancel_is_bounded(size):
    gains = float64([size, -size])
    decays = float64([-0.3, -0.3 - 1 / size / 3])
    C = Tabulated(Recurrence(8, ONE, ONE[None], gains=gains, decays=decays))
    assert_rounded(C, exact(C), range(8))


RULES = (ONCE, Epochs(2), Epochs(3), Separated(1, 2), Separated(2, 2), Separated(2, 3))


def most_moved(truth, rule):
    """The largest squared change by any set of steps and any signs, of which the first is +."""
    squares = [Fraction(0)]
    for chosen in permitted(rule, 5):
        for signs in itertools.product((1, -1), repeat=len(chosen) - 1):
            moved = [dot((1, *signs), [row[c] for c in chosen]) for row in truth]
            squares.append(dot(moved, moved))
    return max(squares)


@ALL
def test_guarantee_no_set_and_no_signs_move_further_than_the_sensitivity(name):
    """In fractions, without a tolerance; what is attained, and exact, is."""
    C = strategy(name, 5)
    truth = exact(C)
    for rule in (*RULES, Separated(3, 9)):
        most = most_moved(truth, rule)
        found = sensitivity(C, rule)
        assert Fraction(found.value) ** 2 >= most
        assert Fraction(found.attained) ** 2 <= most * (1 + Fraction(1, 10**15))
        assert not found.exact or math.isclose(found.value, math.sqrt(most), rel_tol=1e-8)
        # What a strategy knows of itself is no less than its matrix shows.
        assert found.exact or not sensitivity(C.dense(), rule).exact
    assert found.exact or name in ("recalled", "anything")


@ALL
@pytest.mark.parametrize("cuts", [(0, 7, 40), (0, 16, 17, 33, 40)])
def test_parts_hold_the_numbers_of_the_whole(name, cuts, monkeypatch):
    # Cuts lie within what is made together, and at its ends.
    monkeypatch.setattr(stream, "AT_ONCE", 16)
    C = strategy(name, 6)
    whole = run(noise_of(C, size=40))
    parts = [
        run(noise_of(C, size=end - start, shard=(start, 40)))
        for start, end in itertools.pairwise(cuts)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-13)
    assert len(whole.unique()) == whole.numel()


@ALL
def test_the_secret_state_resumes_the_stream(name):
    C = strategy(name, 6)
    whole = run(noise_of(C))
    noise = noise_of(C)
    for stop in (0, 1, 4):
        if stop:
            run(noise, stop - noise.step)
        public, secret = stored((noise.state_dict(), noise.secret_state()))
        fresh = noise_of(C, seed=2)
        fresh.load_state_dict(public)
        fresh.load_secret_state(secret)
        # Another number would be noise that no guarantee is about.
        assert torch.equal(run(fresh), whole[stop:])
    others = [
        noise_of(strategy(name, 5)),
        noise_of(row(1.0, 0.1)(6)),
        noise_of(C, size=6),
        noise_of(C, dtype=torch.float32),
        CorrelatedNoise(C, SIZE, 2.0, dtype=torch.float64),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"of another (strategy|part)"):
            other.load_secret_state(secret)


@ALL
def test_skipped_steps_are_spent(name):
    C = strategy(name, 6)
    whole = run(noise_of(C))
    late = noise_of(C)
    # What is skipped still moves later noise.
    late.skip(3)
    assert late.step == 3
    assert torch.equal(run(late, 1), whole[3:4])
    late.skip(5)
    assert torch.equal(run(late), whole[5:])
    with pytest.raises(RuntimeError, match="all 6 steps of the strategy are spent"):
        late(ZERO)


def interrupted(line, call, handler=lambda: None):
    """Whether ``call()`` came to this line of the stream's code, counted from 0, and was interrupted
    there, after ``handler()``.
    """
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != stream.__file__:
            return None
        if event == "line":
            left -= 1
            if left == -1:
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


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("independent", 0),
        ("recalled", 0),
        ("anything", 1),
    ],
)
def test_an_interrupted_step_is_spent_or_not_begun(name, draws, monkeypatch):
    """An exception at each line of a step in turn, and in what finishes it; a handler that draws.

    The noise keeps its distribution, and none is seen twice. The numbers are made four and three at a time.
    """
    monkeypatch.setattr(stream, "AT_ONCE", 4)
    C = strategy(name, 5)
    expected = run(noise_of(C))
    for line in itertools.count():
        noise = noise_of(C)
        seen = []

        def draw(noise=noise):
            if draws:
                with pytest.raises(RuntimeError, match="while it was drawing"):
                    noise(ZERO)

        def step(noise=noise, seen=seen):
            seen.append((noise.step, noise(ZERO)))

        step()
        step()
        stopped = interrupted(line, step, draw)
        # What finishes it is interrupted, too.
        interrupted(line % 23, step)
        while noise.step < 4:
            step()
        assert len({t for t, _ in seen}) == len(seen) >= 3
        for t, output in seen:
            assert torch.equal(output, expected[t])
        if not stopped:
            break
    # So many lines were interrupted.
    assert line > 25


def test_an_interrupted_load_leaves_one_state_or_the_other():
    parent = noise_of(falling())
    run(parent, 3)
    state = parent.secret_state()
    # At the state's step, and at the own one's.
    drawn = {4: run(parent, 1)[0], 1: noise_of(falling(), 2)(ZERO)}
    for line in itertools.count():
        noise = noise_of(falling(), 2)
        stopped = interrupted(line, lambda noise=noise: noise.load_secret_state(state))
        try:
            output = noise(ZERO)
        except RuntimeError:
            assert noise.step == 3
            assert stopped
            continue
        assert torch.equal(output, drawn[noise.step])
        if not stopped:
            break
    assert line > 10


def test_no_state_is_loaded_in_the_midst_of_a_step(monkeypatch):
    add = stream.correlated_noise.add
    noise = noise_of(falling(), 2)
    state = noise_of(falling()).secret_state()

    def handled(*args):
        with pytest.raises(RuntimeError, match="while it was drawing"):
            noise.load_secret_state(state)
        add(*args)

    monkeypatch.setattr(stream.correlated_noise, "add", handled)
    assert noise(ZERO).isfinite().all()


def test_a_spent_step_stays_spent_whatever_interrupts_its_numbers(monkeypatch):
    def stops(*args):
        raise KeyboardInterrupt

    for line in itertools.count():
        noise = noise_of(falling())
        noise(ZERO)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stream.correlated_noise, "add", stops)
            noise(ZERO)
        assert noise.step == 2
        if not interrupted(line, lambda noise=noise: noise(ZERO)):
            break
        assert noise.step >= 2
    assert line > 10


def test_a_shard_that_is_all_of_a_gradient_is_compared_with_no_other(monkeypatch):
    """A model of one number on several processes: only the first has the sum."""
    compared = []

    def check_agree(step, digest, total):
        compared.append(len(total))

    monkeypatch.setattr(replicas, "several", lambda: True)
    monkeypatch.setattr(replicas, "from_first", lambda key: key)
    monkeypatch.setattr(replicas, "check_agree", check_agree)
    for options in ({"shard": (0, 1)}, {}):
        noise_of(falling(), size=1, **options)(torch.zeros(1))
    assert compared == [0, 1]


# A matrix of so many would take 80 GB.
MANY = 10**5


def many_buffered():
    few = buffered(3)
    ones = torch.ones(MANY, dtype=torch.float64)
    return BufferedStrategy(few.poles, few.zeros, ones, ones)


@pytest.mark.parametrize(
    "make", [lambda: row(1.0, 0.5, 0.3)(MANY), many_buffered, lambda: InverseRoot(MANY, 5)]
)
def test_guarantee_many_steps_need_no_matrix(make):
    C = make()
    noise = CorrelatedNoise(C, 4, 1.0)
    assert noise(torch.zeros(4)).shape == (4,)
    assert noise.steps == MANY
    own = sensitivity(C, ONCE).value
    rules = {ONCE: 1, Epochs(MANY // 8): 8, Separated(MANY // 9, 5): 5}
    for rule, times in rules.items():
        found = sensitivity(C, rule)
        assert math.isclose(found.value, found.attained, rel_tol=1e-7)
        # Columns far apart hardly meet.
        assert 0.99 * math.sqrt(times) * own < found.value < 1.5 * math.sqrt(times) * own
    assert noise.guarantee(1.0, 1e-6, ONCE).epsilon > 0


def test_bands_of_many_steps_are_sampled_and_others_and_their_errors_refused():
    bands = row(1.0, 0.5, 0.3)(MANY)
    assert sensitivity(bands, Epochs(1000)).value == pytest.approx(math.sqrt(100 * 1.34))
    sampling = CyclicPoisson(3, 0.01)
    assert sampling.guarantee(bands, 20.0, 1.0, 1e-6).epsilon > 0
    # Two steps of a user would share an output.
    with pytest.raises(ValueError, match="of at most 3 bands"):
        sampling.guarantee(InverseRoot(MANY, 5), 20.0, 1.0, 1e-6)
    with pytest.raises(ValueError, match="above 4096"):
        standard_errors(Iterates(MANY), many_buffered())


@ALL
@pytest.mark.parametrize("rates", [None, [0.5, 0.2, 0.1, 0.7, 0.3, 0.4]])
def test_errors_are_those_of_the_matrix(name, rates):
    C = strategy(name, 6)
    W = Iterates(6, 0.5, 0.1, rates)
    noise = torch.linalg.solve_triangular(C.dense(), W.dense(), upper=False, left=False)
    torch.testing.assert_close(standard_errors(W, C), noise.norm(dim=1), rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "use",
    [noise_of, lambda C: sensitivity(C, ONCE), lambda C: standard_errors(Iterates(4), C)],
    ids=["noise", "sensitivity", "errors"],
)
def test_a_strategy_whose_tables_are_of_other_steps_is_refused(monkeypatch, use):
    five = InverseRoot(5, 2).tabulated()
    monkeypatch.setattr(Regenerated, "tabulated", lambda self: five)
    with pytest.raises(ValueError, match=r"tabulated\(\) must be of 4 steps"):
        use(Regenerated(4, 0.5))


def test_tables_are_copies_and_their_digest_names_the_law():
    """Who changes a tensor that a strategy was made of changes no noise and no guarantee."""
    feeds = torch.ones(1, 2, dtype=torch.float64)
    C = Tabulated(Recurrence(3, ONE, feeds, (0, 1)))
    before = C.recurrence.digest()
    # As a caller's optimizer would.
    feeds[0, 1] = 9.0
    assert C.recurrence.digest() == before
    assert C.dense()[1, 0] == -1
    half = ONE[None] / 2
    of_w = Recurrence(3, ONE, ONE[None], of_w=half)
    of_u = Recurrence(3, ONE, ONE[None], of_u=half)
    assert len({before, of_w.digest(), of_u.digest()}) == 3
