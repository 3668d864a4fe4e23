"""What a user runs on one number of [-1, 1]: the better of two randomizers of the one-dimensional ball."""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

KNOTS = 400  # of a spline through log epsilon, which then has a relative error below 1e-6


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


def searched_variance(dim: int, epsilon: float) -> float:
    """``PrivUnit.unit_variance`` to a relative 1e-6: for searches, which ask for hundreds of epsilons."""
    return math.exp(float(_log_variance(dim)(math.log(epsilon))))


def searched_worst_variance(epsilon: float) -> float:
    """``worst_variance`` to a relative 1e-5, for searches: what rounding to a grid adds is left out."""
    sign = 1 / math.tanh(epsilon / 2) ** 2
    return min(sign, searched_variance(1, epsilon))


@lru_cache(maxsize=64)
def _log_variance(dim: int) -> "CubicSpline":
    from scipy.interpolate import CubicSpline  # here, because loading it takes long

    logs = np.linspace(math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON), KNOTS)
    epsilons = torch.from_numpy(np.exp(logs)).clamp(SMALLEST_EPSILON, LARGEST_EPSILON)
    return CubicSpline(logs, PrivUnit.unit_variance(dim, epsilons).log().numpy())
