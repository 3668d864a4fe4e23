"""What one user runs: messages with an exact privacy guarantee, exact moments, and exact sums over users."""

from torchdp.randomizers.base import LocalRandomizer
from torchdp.randomizers.privunitg import IsotropicMoments, PrivUnitG
from torchdp.randomizers.randomized_response import FiniteMoments, RandomizedResponse
from torchdp.randomizers.tilted_normal import TiltedNormal

__all__ = [
    "FiniteMoments",
    "IsotropicMoments",
    "LocalRandomizer",
    "PrivUnitG",
    "RandomizedResponse",
    "TiltedNormal",
]
