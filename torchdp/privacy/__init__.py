"""What is guaranteed, and calibration: float64, no tensors."""

from torchdp.privacy.accounting import Profile, composed_delta, composed_epsilon
from torchdp.privacy.gaussian import gaussian_guarantee, gaussian_log_delta, gaussian_sigma
from torchdp.privacy.guarantee import Guarantee, Model, Neighbours, compose

__all__ = [
    "Guarantee",
    "Model",
    "Neighbours",
    "Profile",
    "compose",
    "composed_delta",
    "composed_epsilon",
    "gaussian_guarantee",
    "gaussian_log_delta",
    "gaussian_sigma",
]
