"""Every operation that has a fused form; in a package the one that chooses its tiles comes first."""

from torchdp.kernels import (
    chacha,
    correlated_noise,
    guided_draws,
    normals,
    privunit,
    response_counts,
    rounded_features,
    secure_sketch,
    unary_counts,
)
from torchdp.kernels.dispatch import Kernel

KERNELS: tuple[Kernel, ...] = (
    chacha.KEYSTREAM,
    normals.DRAWS,
    response_counts.COUNTS,
    unary_counts.TALLY,
    privunit.SUMS,
    rounded_features.ROUNDED,
    rounded_features.POSITIVE,
    secure_sketch.ADD,
    correlated_noise.ADD,
    guided_draws.FILL,
)
