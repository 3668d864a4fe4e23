"""Guarantees of one message, and how many users a sum may have."""

from torch import Tensor

from torchdp import checks
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours

# torch.binomial, in float64, keeps its distribution up to about this many users (at 1e15 its
# variance is 1 % off).
MOST_USERS = 10**14

# Of randomizers of a ball.
SMALLEST_EPSILON = 1e-6
LARGEST_EPSILON = 50.0


def ball_epsilon(name: str, value: float) -> float:
    """``value`` as a float in [1e-6, 50]. Raises ValueError."""
    return checks.within(
        name, value, SMALLEST_EPSILON, LARGEST_EPSILON, "; it is no percentage: 1 is usual"
    )


def exact_local(epsilon: float, source: str) -> Guarantee:
    """Exactly epsilon-LDP of the integers that are drawn: any two values of one user."""
    return Guarantee(
        epsilon, 0.0, Model.LOCAL, Neighbours.REPLACE_ONE, True, source, Arithmetic.INTEGER
    )


def real_local(epsilon: float, source: str, delta: float = 0.0) -> Guarantee:
    """(epsilon, delta) of a distribution over the real numbers, where floats are sent."""
    return Guarantee(epsilon, delta, Model.LOCAL, Neighbours.REPLACE_ONE, True, source)


def user_counts(name: str, value: Tensor, k: int) -> Tensor:
    """``value`` as int64 counts (*batch, k), at most 1e14 users in each.

    Raises TypeError, ValueError.
    """
    return checks.counts(name, value, k, MOST_USERS)
