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
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdp import checks
from torchdp.batch import AT_ONCE, Numbers, added, entrywise, functions
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import log_delta
from torchdp.root import root
from torchdp.sketching.sketch import Sketch

Array = NDArray[np.float64]
NEGLIGIBLE = -90.0  # log of the probability of a number of honest pairs that is counted as the worst number
SAFE = 1e-10  # of a factor: an epsilon found from it, to rounding, is not above the one asked for
NEAR, TOLERANCE = 1e-2, 1e-12  # of the logarithm of a factor: of noise for the mean square; of what is found
LOST = 1e-9  # of log delta: more than rounding takes away
LEAST = math.exp(-30)  # epsilon that is no promise but delta


def _at_once(losses: "Losses") -> int:
    return max(1, AT_ONCE // len(losses.squares))


@dataclass(frozen=True, eq=False)
class Losses:
    """How mu^2 of a client is distributed.

    squares, probability: (k,), float64, mu^2 and how likely it is. convex: whether they are s x_c of single copies, to
    be averaged under g instead of f. exact: whether an attacker attains all this.
    """

    squares: Tensor
    probability: Tensor
    convex: bool
    exact: bool

    @entrywise(_at_once, of_floats=True, epsilon=checks.positive)
    def log_delta(self, epsilon: Numbers) -> Numbers:
        """log delta at epsilon > 0, a number or a batch. Raises TypeError, ValueError.

        Guarantees: (epsilon, delta)-DP; exact where ``exact``.
        Source: Balle, Wang (2018), Theorem 8, and the argument above.
        """
        return self._log_delta(epsilon)

    @entrywise(_at_once, of_floats=True, epsilon=checks.squarable, delta=checks.fraction)
    def factor(self, epsilon: Numbers, delta: Numbers) -> Numbers:
        """The least factor of the noise that makes it (epsilon, delta)-DP; numbers, or batches that broadcast.

        Raises TypeError, ValueError.
        """
        on = functions(epsilon)
        target = on.log(delta)

        def excess(log_factor: Numbers) -> Numbers:
            return self._log_delta(epsilon, on.exp(log_factor)) - target

        usual = on.log(gaussian_sigma(epsilon, delta, math.sqrt(float(self.probability @ self.squares))))
        return on.exp(root(excess, usual - NEAR, usual + NEAR, TOLERANCE) + SAFE)

    @entrywise(_at_once, of_floats=True, delta=checks.fraction)
    def epsilon(self, delta: Numbers) -> Numbers:
        """The least epsilon at delta, a number or a batch. Raises ValueError where each epsilon > 0 has less."""
        on = functions(delta)
        target = on.log(delta)

        def excess(log_epsilon: Numbers) -> Numbers:
            return self._log_delta(on.exp(log_epsilon)) - target

        return on.exp(root(excess, 0 * target - 1, 0 * target + 1, TOLERANCE))

    def guarantee(self, delta: float) -> Guarantee:
        """The least epsilon at this delta. Raises ValueError where the noise has this delta at every epsilon > 0."""
        if self.log_delta(LEAST) < math.log(checks.fraction("delta", delta)):
            raise ValueError(f"this noise gives delta < {delta} at every epsilon > 0; state a smaller delta")
        kind = (Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE)
        return Guarantee(self.epsilon(delta), delta, *kind, self.exact, "Balle, Wang (2018), Theorem 8")

    def _log_delta(self, epsilon: Numbers, factor: Numbers = 1.0) -> Numbers:
        delta = convex_delta if self.convex else gaussian_delta
        if isinstance(epsilon, Tensor):
            squares = self.squares[:, None].to(epsilon.device)
            probability = self.probability[:, None].to(epsilon.device)
            average = added(probability * delta(squares / factor**2, epsilon))
        elif self._alone is not None:
            average = delta(self._alone / factor**2, epsilon)
        else:
            one = torch.tensor([epsilon], dtype=torch.float64, device="cpu")
            return float(self._log_delta(one, factor))
        on = functions(average)
        return on.log(on.clip(average, 5e-324)) + LOST

    @cached_property
    def _alone(self) -> float | None:
        """mu^2 where it is one for certain."""
        return float(self.squares) if self.probability.tolist() == [1.0] else None


def worst_loss(square: float, exact: bool) -> Losses:
    """One mu^2 for certain."""
    squares, probability = torch.tensor([[square], [1.0]], dtype=torch.float64, device="cpu")
    return Losses(squares, probability, False, exact)


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
    all_squares, chances = (torch.from_numpy(np.concatenate(parts)) for parts in (squares, probability))
    return Losses(all_squares, chances, s > 1, s == 1)


def gaussian_delta(squares: Numbers, epsilon: Numbers) -> Numbers:
    """f(x), entry by entry."""
    on = functions(squares)
    return on.exp(log_delta(on.sqrt(squares), epsilon))


def convex_delta(squares: Numbers, epsilon: Numbers) -> Numbers:
    """g: f up to its inflection, its tangent from there on, entry by entry."""
    on = functions(squares)
    turn = 2 * epsilon**2 / (on.sqrt(1 + epsilon**2) + 1)  # 2 sqrt(1 + epsilon^2) - 2
    low = gaussian_delta(-on.maximum(-squares, -turn), epsilon)
    root = on.sqrt(turn)
    slope = on.exp(-((root / 2 - epsilon / root) ** 2) / 2) / on.sqrt(8 * math.pi * turn)
    return low + slope * on.clip(squares - turn, 0.0)
