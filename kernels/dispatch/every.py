"""Every operation that has a fused form."""

from torchdp.kernels import (
    chacha,
    correlated_noise,
    guided_draws,
    privunit,
    response_counts,
    rounded_features,
    unary_counts,
)
from torchdp.kernels.dispatch import Kernel

KERNELS: tuple[Kernel, ...] = (
    chacha.KEYSTREAM,
    response_counts.COUNTS,
    unary_counts.TALLY,
    privunit.SUMS,
    rounded_features.ROUNDED,
    rounded_features.POSITIVE,
    correlated_noise.ADD,
    guided_draws.FILL,
)
