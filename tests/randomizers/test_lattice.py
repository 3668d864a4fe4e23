"""Vectors on a lattice: what is sent is a function of the words alone, and floats decide only what
they can.
"""

import functools
import math

import mpmath
import pytest
import torch
from laws import Given, generator, normal, uniform

from torchdp.noise import SeededNoise
from torchdp.randomizers import GaussianVector, PrivUnit
from torchdp.randomizers.ball.lattice import Words, on_lattice
from torchdp.randomizers.ball.sphere import CapLaw

# delta well below what a bug of the arithmetic would add
KINDS = dict(
    PrivUnit=PrivUnit,
    GaussianVector=functools.partial(GaussianVector, delta=1e-6),
)
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# few and many dimensions, hardly any noise and much
SIZES = [(1, 1.0), (2, 0.1), (3, 30.0), (8, 20.0), (9, 8.0), (64, 4.0)]


def nasty(dim, radius, rows):
    """Points of the ball: its centre, axes, a breath from the sphere, one small coordinate, dyadic,
    random.
    """
    x = normal(rows, dim, seed=dim)
    x *= radius / x.norm(dim=1, keepdim=True)
    x[rows // 2 :] *= uniform(rows - rows // 2, 1, seed=1)
    x[0] = 0
    x[1:7] = 0
    x[1, 0] = radius
    x[2, -1] = -radius
    x[3, 0] = radius * (1 - 2**-52)
    x[4, 0] = radius * 2**-26
    x[5, 0] = radius * 2**-27
    x[6, :] = 0.25 * radius / dim
    return x


def in_order(*words):
    """A noise that gives these words one after the other, and words of a seed then."""
    return Given(torch.cat([each.flatten() for each in words]).tolist())


def both(protocol, rows, words=None, seed=3):
    """Float and long answers before the floor, and the bound, of ``rows`` messages at nasty points;
    what users send.
    """
    noise = SeededNoise(seed)
    words = protocol.words(rows, noise) if words is None else words
    x = nasty(protocol.dim, protocol.radius, rows)
    # no rounding to the lattice leaves the ball
    x[7:] *= 1 - 2**-20
    # the lattice of points on which users' vectors are put
    whole = (x * (2**26 / protocol.radius)).round()
    t, bound = protocol.shifted(whole, whole.square().sum(-1), words)
    # whichever rows ask for it
    more = protocol.further(1, noise).expand(rows, -1, -1)
    long = [
        protocol.exactly(point, type(words)(*own), more[0])
        for point, *own in zip(whole.tolist(), *words, strict=True)
    ]
    given = in_order(*words, more)
    sent = protocol.randomize(x, noise=given) / protocol.step
    return t, bound, long, sent.round().long()


def differ(protocol, long, sent):
    """How many of the whole numbers that users send are not those of the long ones."""
    # numbers of this many bits are clamped to what they hold
    most = 2 ** (protocol.bits_per_user // protocol.dim - 1)
    nearest = [[int(one.context.nint(one)) for one in row] for row in long]
    exact = torch.tensor(nearest).clamp(-most, most - 1)
    return int((sent != exact).sum())


def compared(t, bound, long):
    """The largest error over its bound, of rows that have a bound."""
    worst = 0.0
    for row, most, exact in zip(t.tolist(), bound.tolist(), long, strict=True):
        errors = [float(abs(other - one)) for one, other in zip(row, exact, strict=True)]
        worst = max(worst, max(errors) / most) if math.isfinite(most) else worst
    return worst


@every
@pytest.mark.parametrize(("dim", "epsilon"), SIZES)
def test_floats_decide_as_long_numbers_do(kind, dim, epsilon):
    protocol = kind(dim, epsilon, 2.5)
    *found, long, sent = both(protocol, 40 if dim < 20 else 12)
    assert differ(protocol, long, sent) == 0
    assert compared(*found, long) < 1 / 4


@every
def test_the_bound_is_not_idle(kind):
    """An error that could move a message past its neighbours is above it; so is that of single
    precision.
    """
    protocol = kind(8, 2.0)
    t, bound, long, sent = both(protocol, 40)
    # the seven points by hand may be rounded out of the ball
    assert float(bound[7:].max()) < 2**-25
    assert differ(protocol, long[1:] + long[:1], sent) > 250
    assert compared(t + 2**-24, bound, long) > 1
    assert compared(t.float().double(), bound, long) > 1


@every
@pytest.mark.parametrize(
    "word",
    [
        0,
        1,
        2**10,
        2**15,
        2**30,
        2**40,
        2**53,
        2**62,
        2**63 - 1,
        2**63 - 2**11,
        -1,
        -(2**63),
    ],
)
def test_words_put_in_by_hand(kind, word):
    """Whatever the words: long numbers agree within the bound, or there is no bound and they
    decide.
    """
    for dim in (1, 4):
        protocol = kind(dim, 3.0, 2.5)
        for place in range(4):
            words = protocol.words(9, SeededNoise(place))
            part = words[place]
            half = max(1, part.shape[1] // 2)
            part[:, :half] = word
            t, bound, long, sent = both(protocol, 9, words)
            assert compared(t.nan_to_num(math.inf).clamp(-1e9, 1e9), bound, long) < 1 / 4
            assert differ(protocol, long, sent) == 0
            if place == 0 and word in (0, 1, 2**10):
                assert not bound.isfinite().any()


@every
@pytest.mark.parametrize("word", [-(2**63), 2**63 - 1, -(2**63) + 500])
def test_a_radius_of_zero_has_no_bound(kind, word):
    """Words that floats take for U = 1: the radius is 0 and its error unknown, and not of any
    sign.
    """
    protocol = kind(5, 1.0)
    words = protocol.words(3, SeededNoise(1))
    # the second row's word of a radius
    words.radii[1, 2] = word
    whole, squares = on_lattice(nasty(5, 1.0, 8)[:3], 1.0)
    bound = protocol.shifted(whole, squares, words)[1]
    assert bool((~(bound < 0.5))[1])
    assert bool((bound[[0, 2]] < 0.5).all())


@every
def test_no_tail_ends(kind):
    """Floats of 53 bits end at 8.6; a pair of normals goes on as long as its words do."""
    protocol = kind(2, 1.0)
    # along the first axis
    centre = torch.zeros(1, 2).double()
    far = protocol.randomize(centre, noise=Given([0] * 100))[0]
    # its vectors have one length
    assert kind is PrivUnit or float(far[0] / protocol.step) * protocol.grid > 18


@every
def test_rows_in_doubt_are_decided_by_long_numbers(kind):
    """A word of few bits leaves its row in doubt: more words are read for it, and what it sends is
    their function.
    """
    protocol = kind(9, 2.0, 2.5)
    x = nasty(9, 2.5, 12)
    words = protocol.words(12, SeededNoise(4))
    usual = protocol.randomize(x, noise=in_order(*words))
    # the fourth and the ninth row
    words.radii[[3, 8], 2] = 0
    first = in_order(*words).left
    sent = []
    for further in (0, -1):
        given = Given([*first, *[further] * 500])
        sent.append(protocol.randomize(x, noise=given))
        assert len(given.left) == 500 - 2 * protocol.further(1, SeededNoise(1)).numel()
    same = [(usual == sent[0]).all(1), (sent[0] == sent[1]).all(1)]
    assert [each.logical_not().nonzero()[:, 0].tolist() for each in same] == [[3, 8], [3, 8]]


@every
def test_guarantee_no_zero_has_a_sign(kind):
    """A whole number has none: floats, which decide nothing near 0, would say on which side of it V
    was.
    """
    for dtype in (torch.float64, torch.float32):
        sent = kind(8, 1.0).randomize_unchecked(torch.zeros(2000, 8, dtype=dtype), SeededNoise(1))
        assert int((sent == 0).sum()) > 5
        assert not sent[sent == 0].signbit().any()


@pytest.mark.parametrize("radius", [1e-40, 1e-36, 1e34, 1e39])
def test_messages_that_float32_does_not_hold(radius):
    protocol = PrivUnit(2, 1.0, radius)
    sent = protocol.randomize(torch.zeros(9, 2, dtype=torch.float32), noise=SeededNoise(1))
    torch.testing.assert_close(
        protocol.decode(protocol.encode(sent)),
        sent.double(),
        rtol=1e-7,
        atol=0,
    )
    assert len(sent.unique()) == 18


@every
def test_equal_words_send_equal_bits_in_other_blocks_and_threads(kind):
    protocol = kind(33, 2.0, 2.5)
    whole, squares = on_lattice(nasty(33, 2.5, 64), 2.5)
    words = protocol.words(64, SeededNoise(1))
    together = protocol.shifted(whole, squares, words)[0].round()
    for size in (1, 7, 64):
        parts = zip(
            whole.split(size),
            squares.split(size),
            *(each.split(size) for each in words),
            strict=True,
        )
        found = [protocol.shifted(x, square, Words(*own)) for x, square, *own in parts]
        apart = [t.round() for t, _ in found]
        assert torch.equal(together, torch.cat(apart))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(together, protocol.shifted(whole, squares, words)[0].round())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dim", [1, 2, 7, 300, 5000])
def test_guarantee_points_on_the_lattice_are_in_the_ball_without_error(dim):
    radius = 1.7
    x = torch.cat([nasty(dim, radius, 30), nasty(dim, radius * (1 + 1e-7), 30)])
    whole, squares = on_lattice(x, radius)
    rows = [[int(each) for each in row] for row in whole.tolist()]
    assert torch.equal(whole, whole.round())
    exact = [sum(each * each for each in row) for row in rows]
    assert exact == squares.tolist()
    assert max(exact) <= 2**52
    outside = (x.norm(dim=1, keepdim=True) / radius).clamp_min(1)
    inside = x / outside / radius
    assert float((whole / 2**26 - inside).abs().max()) <= 2**-25


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 6.0, 20.0, 50.0])
@pytest.mark.parametrize("dim", [2, 65])
def test_guarantee_the_coin_of_the_cap_is_rounded_down(dim, epsilon):
    """(T/s)/((1 - T)/(1 - s)) <= e^epsilon for the cap's share s, the float that is used, in 100
    digits.
    """
    law = CapLaw(dim, epsilon)
    with mpmath.workdps(100):
        share = mpmath.mpf(law.survival)

        def spent(chance):
            chance = mpmath.mpf(chance) / 2**63
            return mpmath.log(chance / share / ((1 - chance) / (1 - share)))

        assert spent(law.chance) <= mpmath.mpf(epsilon) < spent(law.chance + 1)


@pytest.mark.parametrize("epsilon", [0.1, 10.0, 50.0])
@pytest.mark.parametrize("dim", [8, 256, 4096])
def test_guarantee_what_arithmetic_adds_to_delta(dim, epsilon):
    """Two sums of the bound, one of them by its parts; below 2^-128 for every epsilon."""
    protocol = PrivUnit(dim, epsilon)
    promise = protocol.guarantee
    assert promise.delta >= (1 + math.exp(epsilon)) * protocol.variation
    assert promise.delta < 2**-128
    assert promise.variation == protocol.variation
    assert promise.epsilon == epsilon
    reach = 2 * math.sqrt(dim + 1) + 2
    error = 2 * reach / protocol.grid * 2.0**-255
    # E min(1, 2 dim error/U), U uniform
    steps = torch.logspace(-80, 0, 20001, base=10, dtype=torch.float64)
    doubtful = (2 * dim * error / steps).clamp_max(1)
    mean = torch.trapezoid(doubtful, steps)
    assert float(mean) * (dim + 3) == pytest.approx(protocol.variation, rel=1e-4)


@every
def test_messages_are_whole_multiples_and_travel_in_few_bits(kind):
    protocol = kind(5, 2.0, 2.5)
    x = nasty(5, 2.5, 30)
    for points in (x, x.float()):
        sent = protocol.randomize(points, noise=SeededNoise(1))
        assert sent.dtype == points.dtype
        assert len(protocol.encode(sent)) == 30 * 10 == 30 * protocol.bits_per_user // 8
        near = sent.double() / protocol.step
        torch.testing.assert_close(near, near.round(), rtol=0, atol=1e-3)
    # sums of whole numbers do not depend on the order
    order = torch.randperm(30, generator=generator())
    assert torch.equal(protocol.tally(sent)["sum"], protocol.tally(sent[order])["sum"])
    for wrong in (sent + 0.3 * protocol.step, sent * 1e4):
        with pytest.raises(ValueError, match="messages must be"):
            protocol.tally(wrong)
        with pytest.raises(ValueError, match="messages must be"):
            protocol.encode(wrong)
    with pytest.raises(ValueError, match="data must hold 10 bytes"):
        protocol.decode(b"ab")


@pytest.mark.parametrize(
    ("dim", "epsilon"),
    [
        (1, 20.0),
        (1, 50.0),
        (2, 50.0),
        (16, 8.0),
    ],
)
def test_the_lattice_is_finer_than_the_noise(dim, epsilon):
    """On small spheres at large epsilon the noise is far below the message: more bits, and a share
    of 1e-5 at most.
    """
    protocol = PrivUnit(dim, epsilon)
    noise = protocol.moments.variance - protocol.step**2 / 6
    assert protocol.step**2 / 6 < 1e-5 * noise
    assert protocol.bits_per_user in (16 * dim, 32 * dim)
    # whose digits are fewer than a number's 32 bits
    for dtype in (
        torch.float64,
        torch.float32,
    ):
        sent = protocol.randomize(nasty(dim, 1.0, 40).to(dtype), noise=SeededNoise(2))
        torch.testing.assert_close(
            protocol.decode(protocol.encode(sent)),
            sent.double(),
            rtol=1e-7,
            atol=0,
        )
        assert protocol.tally(sent).n == 40
