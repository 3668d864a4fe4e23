"""Every randomizer that says it is exactly epsilon-LDP, by brute force: the largest ratio of truth to claim.

Finite channels: all messages of a small alphabet, enumerated in rational numbers from the words that the sampler reads.
Vectors: densities over the real numbers from the integers that are drawn and from textbook areas and quadratures.
"""

import itertools
import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PointRelease,
    PrivUnit,
    PrivUnitG,
    ProjUnit,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator

EXACT = Context(prec=60)
LARGEST = 1 + 1e-9
EPSILONS = [1e-6, 0.01, 1.0, 6.0, 20.0, 36.0, 50.0]
UNARY = [OptimizedUnaryEncoding, SymmetricUnaryEncoding]


def spent(ratio):
    """log of a rational number, to 60 digits before it is rounded."""
    return float((Decimal(ratio.numerator) / Decimal(ratio.denominator)).ln(EXACT)) if ratio != 1 else 0.0


def spent_by(laws):
    """The largest log ratio of a message's chances, from one list of chances for each type."""
    assert all(sum(law) == 1 for law in laws)
    return spent(max(max(chances) / min(chances) for chances in zip(*laws, strict=True)))


def channel(oracle):
    """The law of all messages for each type, in rational numbers."""
    k = oracle.k
    if isinstance(oracle, RandomizedResponse):
        other = Fraction(oracle._step, 2**63)
        return [[1 - (k - 1) * other if y == x else other for y in range(k)] for x in range(k)]
    if isinstance(oracle, StrategyMatrix):
        return [[Fraction(n, 2**63) for n in column] for column in oracle.table.mT.tolist()]
    if isinstance(oracle, HadamardResponse):
        size, low = oracle.tallies, Fraction(oracle._unlikely)
        odd = [[bin((x + 1) & y).count("1") % 2 for y in range(size)] for x in range(k)]
        return [[(low if each else 1 - low) * 2 / size for each in row] for row in odd]
    lost, off = Fraction(oracle.lost), Fraction(oracle.off)
    if isinstance(oracle, SubsetSelection):
        sets = list(itertools.combinations(range(k), oracle.subset))
        holding = math.comb(k - 1, oracle.subset - 1)
        return [[(1 - lost) / holding if x in s else lost / (len(sets) - holding) for s in sets] for x in range(k)]
    sets = list(itertools.product((0, 1), repeat=k))

    def chance(x, bits):
        one = [1 - lost if v == x else off for v in range(k)]
        return math.prod(p if bit else 1 - p for p, bit in zip(one, bits, strict=True))

    return [[chance(x, bits) for bits in sets] for x in range(k)]


def matrices():
    """Twelve strategies, even ones and uneven ones."""
    for seed in range(12):
        generator = keyed_generator(b"strategy %d" % seed)
        Q = (torch.randn(3 + seed, 2 + seed % 4, dtype=torch.float64, generator=generator) * (1 + seed)).exp()
        yield StrategyMatrix(Q / Q.sum(0))


def finite():
    kinds = [RandomizedResponse, HadamardResponse, SubsetSelection, *UNARY]
    for kind, k, epsilon in itertools.product(kinds, (2, 3, 5), EPSILONS):
        yield kind(k, epsilon)
    yield from matrices()


def area(randomizer):
    """The share of the half space or cap beyond the threshold, by quadrature."""
    if isinstance(randomizer, PrivUnitG):
        threshold = randomizer.tau.threshold
        found, _ = integrate.quad(lambda t: math.exp(-t * t / 2 - t * threshold), 0, 40, epsabs=0, epsrel=1e-13)
        return found * math.exp(-threshold * threshold / 2) / math.sqrt(2 * math.pi)
    power, edge = randomizer.cap.dim - 2, 2 * math.atan(math.exp(-randomizer.cap.rapidity))  # acos(threshold)
    part, whole = (
        integrate.quad(lambda a: math.sin(a) ** power, 0, end, epsabs=0, epsrel=1e-13)[0]
        for end in (edge, math.pi)
    )
    return part / whole


def two_densities(randomizer):
    """The log ratio of the densities on the favoured set and off it, from the integers and the set's share."""
    law = randomizer.tau if isinstance(randomizer, PrivUnitG) else randomizer.cap
    chance, share = Fraction(law.chance, 2**63), Fraction(law.survival)
    truth = spent(chance / share / ((1 - chance) / (1 - share)))
    assert float(share) == pytest.approx(area(randomizer), rel=1e-9)  # the share is the one of this threshold
    return truth


def signs(randomizer):
    """The sign of <V, x> is lost with a chance that depends on ||x|| alone: all pairs of lengths and signs."""
    behind = randomizer._behind(torch.linspace(0, 1, 101, dtype=torch.float64)).tolist()
    densities = [Fraction(each, 2**63) for n in behind for each in (n, 2**63 - n)]
    return spent(max(densities) / min(densities))


def vectors():
    for epsilon in EPSILONS:
        for dim in (1, 3):
            yield PrivUnitG(dim, epsilon), two_densities
            yield PrivUnit(dim, epsilon), two_densities
            yield DuchiJordanWainwright(dim, epsilon), signs
            yield PointRelease(dim, epsilon), signs
        yield ProjUnit(7, epsilon, k=3), two_densities


def test_guarantee_no_channel_spends_more_than_it_says():
    """``pytest -s`` prints how many there are and the largest ratio."""
    found = {}
    for oracle in finite():
        found.setdefault(type(oracle).__name__, []).append(spent_by(channel(oracle)) / oracle.guarantee.epsilon)
    for randomizer, truth in vectors():
        found.setdefault(type(randomizer).__name__, []).append(truth(randomizer) / randomizer.guarantee.epsilon)
    for name, ratios in found.items():
        print(f"{name}: {len(ratios)} channels, truth over claim at most {max(ratios)!r}")
        assert max(ratios) <= LARGEST and max(ratios) > 0.999  # and what is claimed is spent
    assert len(found) == 11


def test_a_channel_that_spends_more_is_seen():
    """Planted: a chance halved, an output that a type never sends, a row of floats on 2^-53."""
    laws = channel(OptimizedUnaryEncoding(3, 6.0))
    claimed = OptimizedUnaryEncoding(3, 6.0).guarantee.epsilon
    least = min(range(len(laws[0])), key=laws[0].__getitem__)
    laws[0][least], laws[0][least - 1] = laws[0][least] / 2, laws[0][least - 1] + laws[0][least] / 2
    assert spent_by(laws) > claimed * LARGEST
    laws[0][least], laws[0][least - 1] = Fraction(0), laws[0][least - 1] + laws[0][least]
    with pytest.raises(ZeroDivisionError):
        spent_by(laws)
    q = math.exp(-30) / (1 + 63 * math.exp(-30))
    coarse = Fraction(math.floor(q * 2**53), 2**53)
    assert spent((1 - 63 * coarse) / coarse) > 30.001


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("norms", [(1.0, 0.0), (1.0, -1.0), (0.9, -0.6)])
def test_densities_of_one_dimensional_messages(epsilon, norms):
    """Y itself, the lifting coordinate integrated out: its density between two points, at every Y up to 13."""
    randomizer, v = PrivUnitG(1, epsilon), np.linspace(-13, 13, 2001)
    chance, share = randomizer.tau.chance / 2**63, randomizer.tau.survival
    high, low = chance / share, (1 - chance) / (1 - share)

    def density(x):  # over that of a normal, which is the same for all points
        spread = math.sqrt(1 - x * x)
        beyond = (
            stats.norm.sf((randomizer.tau.threshold - v * x) / spread)
            if spread
            else v * x >= randomizer.tau.threshold
        )
        return low + (high - low) * beyond

    ratio = np.log(density(norms[0]) / density(norms[1]))
    assert np.abs(ratio).max() <= epsilon * LARGEST
    if norms == (1.0, -1.0):
        assert np.abs(ratio).max() > epsilon * (1 - 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-5), (1.0, 1e-6), (8.0, 1e-12), (30.0, 1e-9)])
def test_the_gaussian_vector_spends_the_delta_that_it_says(epsilon, delta):
    """The hockey stick of two normals, by quadrature of their densities."""
    randomizer = GaussianVector(3, epsilon, 2.0, delta=delta)
    shift = 4.0 / randomizer.sigma
    edge = epsilon / shift + shift / 2  # beyond it the first density is e^epsilon times the second
    truth, _ = integrate.quad(
        lambda t: stats.norm.pdf(t - shift) - math.exp(epsilon) * stats.norm.pdf(t),
        edge,
        edge + 30,
        epsabs=0,
        epsrel=1e-12,
    )
    assert 1 - 1e-6 < truth / delta <= 1 + 1e-7


def test_what_normals_that_end_would_tell():
    """The mass that one point's messages put where another's never are: by hand at d = 1, refused where it is large."""
    tails = PrivUnitG(1, 50.0)
    chance = tails.tau.chance / 2**63
    beyond = chance * stats.norm.sf(13.26) / tails.tau.survival  # from x = 1, where x = 0 has a normal alone
    assert beyond <= tails.missed < 2**-50
    short = chance * stats.norm.sf(8.572) / tails.tau.survival  # normals of 53 bits
    assert short > 0.9
    assert GaussianVector(1, 1.0, delta=1e-12).missed < 1e-12 / 1024
    for dim, epsilon in ((10**4, 50.0), (10**6, 45.0)):
        with pytest.raises(
            ValueError, match=r"normals that are drawn end; .* take epsilon = (\S+), or PrivUnit"
        ) as error:
            PrivUnitG(dim, epsilon)
        advice = float(str(error.value).split("take epsilon = ")[1].split(",")[0])
        assert PrivUnitG(dim, advice).missed <= 2**-50 < 2 * PrivUnitG(dim, advice).missed * math.exp(0.5)
        PrivUnit(dim, epsilon)
    with pytest.raises(ValueError, match=r"take delta = ") as error:
        GaussianVector(1000, 1.0, delta=1e-40)
    GaussianVector(1000, 1.0, delta=float(str(error.value).split("take delta = ")[1]))


@pytest.mark.parametrize("kind", [PrivUnitG, PrivUnit, lambda *a: GaussianVector(*a, delta=1e-9)])
def test_what_is_not_covered_is_said(kind):
    assert "low-order bits" in kind(3, 1.0).guarantee.source
    assert "low-order bits" not in PointRelease(3, 1.0).guarantee.source  # its support is the same for all points


@pytest.mark.parametrize("kind", [DuchiJordanWainwright, PointRelease])
def test_low_order_bits_of_signs_are_the_same_for_all_points(kind, planted):
    """The same words make the same message or its negative, bit for bit, whatever the point."""
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-0.6, 0.3]], dtype=torch.float64)
    first, *others = (kind(2, 0.5).messages(each.expand(500, 2), planted(7)).abs() for each in points)
    assert all(torch.equal(first, other) for other in others)


def test_the_ends_of_tau(planted):
    """The rarest words of either part: no tail ends before 12, none stops short of the threshold."""
    tau = PrivUnitG(1, 50.0).tau
    words = torch.tensor([0, -(2**63), 2**63 - 1, -1])  # above from infinity, from the threshold; below the same
    rare = planted(words=words, exponential=torch.tensor(87.0, dtype=torch.float64))
    from_k, far, up_to_k, low = tau.draw((4,), rare).tolist()
    k = tau.threshold
    assert far > 15 and k <= from_k < k * (1 + 1e-15) and k * (1 - 1e-15) < up_to_k <= k and low < -12.9
    usual = planted(words=words, exponential=torch.tensor(0.0, dtype=torch.float64))  # the middle of each part
    middle = tau.draw((4,), usual)
    wanted = [stats.norm.isf(tau.survival / 2)] * 2 + [stats.norm.ppf((1 - tau.survival) / 2)] * 2
    np.testing.assert_allclose(middle.numpy(), wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("radius", [1e200, 1e-200, 1e308])
def test_radii_that_overflow_are_refused(radius):
    with pytest.raises(ValueError, match="radius must lie in"):
        PrivUnitG(2, 1.0, radius)


@pytest.mark.parametrize("radius", [1e-140, 1e140])
def test_the_extreme_radii_are_drawn(radius):
    randomizer = PrivUnit(2, 1.0, radius)
    assert randomizer.sample(torch.tensor([[radius, 0.0]], dtype=torch.float64)).isfinite().all()
    assert 0 < randomizer.moments.variance < math.inf
    with pytest.raises(ValueError, match="outside the ball"):
        randomizer.sample(torch.tensor([[1e200, 0.0]], dtype=torch.float64))
