"""Privacy of Gaussian noise whose strength depends on luck: delta averaged over the sketch, which is released.

A release is a Gaussian pair at distance mu_i for client i, given the sketch. Against a coalition chosen after the
sketch only the largest mu counts. Let instead client i be honest, t' others corrupt, both fixed before a sketch with
exchangeable columns was drawn: given all columns but not whose they are, that of i is each of them alike, and the
honest pairs of a row with c pairs, i's among them, are 1 + Hypergeometric(n - 1, c - 1, n - 1 - t'). As S does not
depend on the data, delta is the average over S of f(mu_i^2), f(x) = delta(epsilon; sqrt(x)).

*One copy*, or everybody honest: an average computed as it stands, exact. *Several copies*, mu_i^2 = sum_c x_c, x_c of
the honest pairs of i's row in copy c: these rows are dependent. f is convex on [0, x0], x0 = 2 sqrt(1 + epsilon^2) - 2,
and concave beyond (f'(x) = phi(sqrt(x)/2 - epsilon/sqrt(x))/(2 sqrt(x))), so g, which is f on [0, x0] and its tangent
beyond, is convex and at least f. By Jensen E f(sum_c x_c) <= sum_c E g(s x_c)/s, which asks for single rows alone.
Where noise is calibrated to a usual delta, no h that is at all likely reaches x0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr
from torch import Tensor

from torchdp import checks
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.privacy.root import root
from torchdp.sketching.sketch import Sketch

Array = NDArray[np.float64]
NEGLIGIBLE = -90.0  # log of the probability of a number of honest pairs that is counted as the worst number
SAFE = 1e-10  # of a factor: an epsilon found from it, to rounding, is not above the one asked for
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class Losses:
    """How mu^2 of a client is distributed.

    squares, probability: (k,), mu^2 and how likely it is. convex: whether they are s x_c of single copies, to be
    averaged under g instead of f. exact: whether an attacker attains all this.
    """

    squares: Array
    probability: Array
    convex: bool
    exact: bool

    def scaled(self, factor: float) -> "Losses":
        """Of noise that is ``factor`` times as large."""
        return replace(self, squares=self.squares / factor**2)

    def log_delta(self, epsilon: float) -> float:
        """log delta at epsilon.

        Guarantees: (epsilon, delta)-DP; exact where ``exact``.
        Source: Balle, Wang (2018), Theorem 8, and the argument above.
        """
        delta = convex_delta if self.convex else gaussian_delta
        average = float(self.probability @ delta(self.squares, epsilon))
        return math.log(max(average, 5e-324)) + 1e-9  # on the safe side of rounding

    def factor(self, epsilon: float, delta: float) -> float:
        """The least factor of the noise that makes it (epsilon, delta)-DP. Raises ValueError."""
        epsilon, target = checks.squarable("epsilon", epsilon), math.log(checks.fraction("delta", delta))

        def excess(log_factor: float) -> float:
            return self.scaled(math.exp(log_factor)).log_delta(epsilon) - target

        usual = math.log(float(self.probability @ self.squares)) / 2
        return math.exp(root(excess, usual - 1, usual + 1) + SAFE)

    def guarantee(self, delta: float) -> Guarantee:
        """The least epsilon at this delta. Raises ValueError where the noise has this delta at every epsilon > 0."""
        target = math.log(checks.fraction("delta", delta))

        def excess(log_epsilon: float) -> float:
            return self.log_delta(math.exp(log_epsilon)) - target

        if excess(-30.0) < 0:
            raise ValueError(f"this noise gives delta < {delta} at every epsilon > 0; state a smaller delta")
        epsilon = math.exp(root(excess, -1.0, 1.0))
        model, neighbours = Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE
        return Guarantee(epsilon, delta, model, neighbours, self.exact, "Balle, Wang (2018), Theorem 8")


def worst_loss(square: float, exact: bool) -> Losses:
    """One mu^2 for certain."""
    return Losses(np.array([square]), np.ones(1), False, exact)


def copy_losses(sketch: Sketch, corrupt: int, key: Tensor, part: Callable[[Array, float], Array]) -> Losses:
    """Of a coalition of ``corrupt`` clients, and a client, that were fixed before the sketch was drawn.

    key: (m,), what ``part`` needs to know of each row. part(h, key_j): what a copy in row j with h honest pairs adds to
    mu^2, decreasing in h; (k,) -> (k,).

    Guarantees: exact with one copy, an upper bound with several.
    Source: the argument above.
    """
    from scipy.stats import hypergeom  # here, because loading it takes half a second

    n, s, counts = sketch.clients, sketch.copies, sketch.counts()
    rows = np.stack([counts.double().cpu().numpy(), key.double().cpu().numpy()], 1)
    squares, probability = [], []
    for (count, value), size in zip(*np.unique(rows[rows[:, 0] > 0], axis=0, return_counts=True), strict=True):
        honest = np.arange(max(1.0, count - corrupt), min(count, n - corrupt) + 1)
        log_law = (
            hypergeom.logpmf(honest - 1, n - 1, count - 1, n - 1 - corrupt) if len(honest) > 1 else np.zeros(1)
        )
        likely = log_law > NEGLIGIBLE
        held = np.append(honest[likely], 1.0)
        law = np.append(np.exp(log_law[likely]), (~likely).sum() * math.exp(NEGLIGIBLE))
        squares.append(s * part(held, float(value)))
        probability.append(size * count / (s * n) * law)
    return Losses(np.concatenate(squares), np.concatenate(probability), s > 1, s == 1)


def gaussian_delta(squares: Array, epsilon: float) -> Array:
    """f(x) = Phi(-a) - e^epsilon Phi(-a - mu), mu = sqrt(x), a = epsilon/mu - mu/2; (k,) -> (k,), to 10 digits.

    For small mu as phi(a) times the integral from a to a + mu of 1 - t M(t), M the Mills ratio: nothing cancels.
    """
    mu = np.sqrt(squares)
    a = epsilon / mu - mu / 2
    plain = ndtr(-a) - np.exp(epsilon + log_ndtr(-a - mu))
    t = np.maximum(a[:, None] + mu[:, None] * (_NODES + 1) / 2, -30.0)
    integral = mu / 2 * ((1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))) @ _WEIGHTS)
    small = np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) * integral
    return np.maximum(np.where(mu < 0.5, small, plain), 0.0)


def convex_delta(squares: Array, epsilon: float) -> Array:
    """g: f up to its inflection, its tangent from there on; (k,) -> (k,)."""
    turn = 2 * epsilon**2 / (math.sqrt(1 + epsilon**2) + 1)  # 2 sqrt(1 + epsilon^2) - 2
    low = gaussian_delta(np.minimum(squares, turn), epsilon)
    slope = math.exp(-((math.sqrt(turn) / 2 - epsilon / math.sqrt(turn)) ** 2) / 2) / math.sqrt(8 * math.pi * turn)
    return low + slope * np.maximum(squares - turn, 0.0)
