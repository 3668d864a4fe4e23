"""Sketches in the linear-transformation model: clients add divisible noise, servers that do not all collude add up."""

from torchdp.sketching.calibration import (
    entry_variance,
    laplace_noise,
    one_copy_sigma,
    polya_noise,
    row_sigma,
    single_sigma,
)
from torchdp.sketching.coalition import AdaptiveCoalition, Coalition, StaticCoalition
from torchdp.sketching.constructions import (
    balanced_count_sketch,
    balanced_osnap,
    count_sketch,
    ones,
    osnap,
    osnap_blocks,
    rademacher,
)
from torchdp.sketching.gaussian_noise import GaussianNoise, OneCopyGaussianNoise
from torchdp.sketching.noise import DivisibleNoise
from torchdp.sketching.paper import (
    paper_experiment_laplace_noise,
    paper_experiment_noise,
    paper_gaussian_noise,
    paper_laplace_noise,
)
from torchdp.sketching.pure_noise import LaplaceNoise, PolyaNoise
from torchdp.sketching.sketch import Sketch, embedding_values
from torchdp.sketching.transform import Layout, add_rows, bucket_sums

__all__ = [
    "AdaptiveCoalition",
    "Coalition",
    "DivisibleNoise",
    "GaussianNoise",
    "LaplaceNoise",
    "Layout",
    "OneCopyGaussianNoise",
    "PolyaNoise",
    "Sketch",
    "StaticCoalition",
    "add_rows",
    "balanced_count_sketch",
    "balanced_osnap",
    "bucket_sums",
    "count_sketch",
    "embedding_values",
    "entry_variance",
    "laplace_noise",
    "one_copy_sigma",
    "ones",
    "osnap",
    "osnap_blocks",
    "paper_experiment_laplace_noise",
    "paper_experiment_noise",
    "paper_gaussian_noise",
    "paper_laplace_noise",
    "polya_noise",
    "rademacher",
    "row_sigma",
    "single_sigma",
]
