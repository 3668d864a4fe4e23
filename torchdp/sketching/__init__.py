"""Sketches in the linear-transformation model: clients add divisible noise, servers that do not all collude add up."""

from torchdp.sketching.calibration import (
    entry_variance,
    laplace_noise,
    one_copy_sigma,
    polya_noise,
    row_sigma,
    single_sigma,
)
from torchdp.sketching.central import (
    AdaSSP,
    ModSulq,
    SufficientStatistics,
    mod_sulq,
    paper_adassp_scale,
    paper_mod_sulq,
)
from torchdp.sketching.choose import Route, RouteChoice, choose_low_rank, choose_regression
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
from torchdp.sketching.data import (
    clipped_rows,
    export_moments,
    import_moments,
    regression_rows,
    rows_from_moments,
    scaled_columns,
    spectrum_rows,
)
from torchdp.sketching.errors import SecondMoments, least_squares, loss, phi, psi, second_moments
from torchdp.sketching.frames import FrameError
from torchdp.sketching.gaussian_noise import GaussianNoise, OneCopyGaussianNoise
from torchdp.sketching.gram import GramRelease
from torchdp.sketching.local import LocalRows
from torchdp.sketching.low_rank import predicted_psi, predicted_psi_of_sketch, random_psi, top_directions
from torchdp.sketching.moments import FrequencyMoments, SecureHistogram, paper_moment_variance
from torchdp.sketching.noise import DivisibleNoise
from torchdp.sketching.paper import (
    paper_experiment_laplace_noise,
    paper_experiment_noise,
    paper_gaussian_noise,
    paper_laplace_noise,
)
from torchdp.sketching.processes import run_processes, take_part
from torchdp.sketching.protocol import SecureSketch
from torchdp.sketching.pure_noise import LaplaceNoise, PolyaNoise
from torchdp.sketching.ridge import adaptive_ridge, predicted_phi, predicted_phi_of_sketch, solve_ridge
from torchdp.sketching.ring import Ring
from torchdp.sketching.second_moment_noise import NoisyMoments, debiased
from torchdp.sketching.sensitivity import cross_sensitivity, gram_sensitivity, joint_sensitivity
from torchdp.sketching.servers import Links, Server, client_frames, reveal_frames
from torchdp.sketching.shared_noise import SharedGaussian, SharedLaplace
from torchdp.sketching.shares import reconstruct, share
from torchdp.sketching.sketch import Sketch, embedding_values
from torchdp.sketching.tables import Schema, load_csv
from torchdp.sketching.transform import Layout, add_rows, bucket_sums

__all__ = [
    "AdaSSP",
    "AdaptiveCoalition",
    "Coalition",
    "DivisibleNoise",
    "FrameError",
    "FrequencyMoments",
    "GaussianNoise",
    "GramRelease",
    "LaplaceNoise",
    "Layout",
    "Links",
    "LocalRows",
    "ModSulq",
    "NoisyMoments",
    "OneCopyGaussianNoise",
    "PolyaNoise",
    "Ring",
    "Route",
    "RouteChoice",
    "Schema",
    "SecondMoments",
    "SecureHistogram",
    "SecureSketch",
    "Server",
    "SharedGaussian",
    "SharedLaplace",
    "Sketch",
    "StaticCoalition",
    "SufficientStatistics",
    "adaptive_ridge",
    "add_rows",
    "balanced_count_sketch",
    "balanced_osnap",
    "bucket_sums",
    "choose_low_rank",
    "choose_regression",
    "client_frames",
    "clipped_rows",
    "count_sketch",
    "cross_sensitivity",
    "debiased",
    "embedding_values",
    "entry_variance",
    "export_moments",
    "gram_sensitivity",
    "import_moments",
    "joint_sensitivity",
    "laplace_noise",
    "least_squares",
    "load_csv",
    "loss",
    "mod_sulq",
    "one_copy_sigma",
    "ones",
    "osnap",
    "osnap_blocks",
    "paper_adassp_scale",
    "paper_experiment_laplace_noise",
    "paper_experiment_noise",
    "paper_gaussian_noise",
    "paper_laplace_noise",
    "paper_mod_sulq",
    "paper_moment_variance",
    "phi",
    "polya_noise",
    "predicted_phi",
    "predicted_phi_of_sketch",
    "predicted_psi",
    "predicted_psi_of_sketch",
    "psi",
    "rademacher",
    "random_psi",
    "reconstruct",
    "regression_rows",
    "reveal_frames",
    "row_sigma",
    "rows_from_moments",
    "run_processes",
    "scaled_columns",
    "second_moments",
    "share",
    "single_sigma",
    "solve_ridge",
    "spectrum_rows",
    "take_part",
    "top_directions",
]
