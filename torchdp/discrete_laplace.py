"""Discrete Laplace noise in equal shares, on grids of any fineness: integers, without error.

P(Z = z) in proportion to a^|z|, a = e^-rate, is the distribution of the sum of h shares
NB(1/h, a) - NB(1/h, a). A share is the sum of Poisson(-(2/h) log(1 - a)) clusters, each with a
random sign and a size k, P(k) in proportion to a^k/k, k >= 1: of many clients few have any, and
only these are drawn.

Source: Quenouille (1949) for the clusters; Goryczka, Xiong (2017) for the shares.
"""

import math

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import inversion
from torchdp.kernels.normals.exact import arithmetic, joined
from torchdp.rounded import Guide, guide

# Sizes stay below 2^62.
LEAST_RATE = 2.0**-54
# Sizes of 2^J or more are left out, rate 2^J >= 160: below 2^-220 of the distribution.
CUT = 160.0
# Floats decide where they are further apart than that.
NEAR = 2.0**-40
# Tries at once, of so few clusters that a round costs the same for one.
TRIES = 8
FEW = 2048
# of one draw of a table: below 2^12 thresholds
MOST_MEAN = 2.0**14
# Means are rounded up: more noise of one kind is no less private.
SURELY = 1 + 2.0**-50
# total variation distance of a draw of a table from its distribution
OF_A_TABLE = 2.0**-113
# and of a draw of a cluster's size
OF_A_SIZE = 2.0**-219


def truncated(rate: float, reach: int) -> Guide:
    """What draws Z with P(Z = z) in proportion to e^(-rate |z|) for |z| <= reach, and else 0.

    Raises ValueError.
    """
    return guide(inversion.truncated_laplace, (rate, reach), "cpu")


def variance(rate: float) -> float:
    """1/(2 sinh^2(rate/2)), of the whole."""
    return 0.5 / math.sinh(rate / 2) ** 2


def fourth_cumulant(rate: float) -> float:
    """v + 3 v^2 = 2 a (1 + 4 a + a^2)/(1 - a)^4, v the variance, of the whole.

    Twice that of a geometric variable.
    """
    v = variance(rate)
    return v + 3 * v**2


def mean_clusters(share: float, rate: float) -> float:
    """Clusters of ``share`` of the whole, both signs, in the mean."""
    # log(1 - a), in the form that loses no digits
    log = math.log1p(-math.exp(-rate)) if rate > 0.7 else math.log(-math.expm1(-rate))
    return -2 * share * log * SURELY


def variation(speakers: int, clusters: float) -> float:
    """A bound on the total variation distance of so many clusters, in at most so many calls."""
    return (speakers + clusters / MOST_MEAN) * OF_A_TABLE + clusters * OF_A_SIZE


def tail(shares: Tensor, rate: float, exponent: float) -> Tensor:
    """T with P(|Z| >= T) <= 2 e^-exponent for so many wholes Z together, float64.

    (exponent - shares log(1 - t^2))/(t rate), the least over some t in (0, 1): Chernoff's bound,
    with E e^(t rate Z) <= (1 - t^2)^-shares, because (cosh x - cosh t x)/(cosh x - 1) >= 1 - t^2,
    term by term. Of the shape of ``shares``.
    """
    t = torch.linspace(0.02, 0.99, 98, dtype=torch.float64, device=shares.device)
    log_moments = -shares.double()[..., None] * torch.log1p(-t * t)
    return ((exponent + log_moments) / t).amin(-1) / rate


def add_shares(cells: Tensor, share: float, rate: float, draws: Draws) -> Tensor:
    """Add ``share`` of a whole to each of the cells (size,), int64, in place.

    Guarantees: each whole is within ``variation`` of its distribution, for uniform words, on every
    device.
    """
    mean = len(cells) * mean_clusters(share, rate)
    if mean == 0:
        return cells
    # The number of clusters in all cells together is Poisson; each then falls into a random one.
    pieces = max(1, math.ceil(mean / MOST_MEAN))
    counts = torch.empty(pieces, dtype=torch.int64, device=draws.device)
    guide(inversion.poisson, mean / pieces, str(draws.device)).fill(counts, draws)
    where = draws.below(len(cells), (int(counts.sum()),))
    return cells.index_add_(0, where, _signed_sizes(len(where), rate, draws))


def sample_sums(shares: Tensor, rate: float, draws: Draws) -> Tensor:
    """So many wholes together, int64, for a tensor of shares: for simulation."""
    counts = draws.poisson(shares * mean_clusters(1.0, rate)).flatten()
    where = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    sums = torch.zeros_like(counts)
    return sums.index_add_(0, where, _signed_sizes(len(where), rate, draws)).view(shares.shape)


def _signed_sizes(size: int, rate: float, draws: Draws) -> Tensor:
    positive = sizes(size, rate, draws)
    signs = 1 - 2 * (draws.words((size,)) & 1)
    return positive * signs


def sizes(size: int, rate: float, draws: Draws) -> Tensor:
    """P(k) in proportion to e^(-rate k)/k, k = 1, 2, ...: (size,), int64.

    An octave 2^j <= k < 2^(j + 1) and a k in it, each with equal chance, are kept with probability
    2^j/k e^(-rate (k - 1)).
    """
    octaves = max(1, math.ceil(math.log2(CUT / rate)))
    result = torch.empty(size, dtype=torch.int64, device=draws.device)
    where = torch.arange(size, device=draws.device)
    while len(where):
        tries = TRIES if len(where) <= FEW else 1
        shape = (len(where) * tries,)
        octave = draws.below(octaves, shape)
        first = 1 << octave
        k = (draws.integers(shape) & (first - 1)) + first
        kept = _kept(draws.integers(shape), octave, k, rate, draws).view(tries, -1)
        found = kept.any(0)
        # The first try that is kept.
        best = kept.int().argmax(0, keepdim=True)
        result[where[found]] = k.view(tries, -1).gather(0, best)[0, found]
        where = where[~found]
    return result


def _kept(first: Tensor, octave: Tensor, k: Tensor, rate: float, draws: Draws) -> Tensor:
    """Whether a uniform number, whose first 63 bits are given, lies below the probability."""
    chance = torch.exp(-rate * (k - 1).double()) * (1 << octave).double() / k.double()
    above = (first.double() + 0.5) * 2.0**-63 - chance
    # By floats; where they are too near to 0, exactly.
    kept = above < 0
    for at in (above.abs() < NEAR).nonzero()[:, 0].cpu().tolist():  # once in 2^39
        words = [int(first[at]), *draws.words((3,)).tolist()]
        kept[at] = exactly(words, int(octave[at]), int(k[at]), rate)
    return kept


def exactly(words: list[int], octave: int, k: int, rate: float) -> bool:
    """The same by 63 + 192 bits of the uniform number and arithmetic of 448 bits."""
    context = arithmetic()
    uniform = joined(words[1:], words[0])
    chance = context.exp(-context.mpf(rate) * (k - 1)) * 2**octave / k
    return bool((2 * uniform + 1) * context.mpf(2) ** -256 < chance)
