"""What a user runs on one number of [-1, 1]: the better of two randomizers of the one-dimensional ball."""

from torch import Tensor

from torchdp import checks
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer


def scalar_response(epsilon: float) -> BallRandomizer:
    """The one with the smaller variance at its worst value, 0: the sign up to epsilon = 1.044, then PrivUnit."""
    epsilon = checks.positive("epsilon", epsilon)
    sign = DuchiJordanWainwright(1, epsilon)
    capped = PrivUnit(1, epsilon)
    return sign if sign.moments.variance <= capped.moments.variance else capped


def variance(response: BallRandomizer, values: Tensor) -> Tensor:
    """Var of one message about each value; a concave function."""
    moments = response.moments
    return moments.variance + moments.outer * values.square()


def worst_variance(epsilon: float) -> float:
    """Var of ``scalar_response`` at value 0, where it is largest."""
    return scalar_response(epsilon).moments.variance
