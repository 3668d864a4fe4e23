"""Second moments, ridge, low rank and frequency moments of secure sums."""

from torchdp.regression.central import (
    AdaSSP,
    ModSulq,
    SufficientStatistics,
    mod_sulq,
    paper_adassp_scale,
    paper_mod_sulq,
)
from torchdp.regression.choose import Route, RouteChoice, choose_low_rank, choose_regression
from torchdp.regression.data import (
    clipped_rows,
    export_moments,
    import_moments,
    regression_rows,
    rows_from_moments,
    scaled_columns,
    spectrum_rows,
)
from torchdp.regression.errors import SecondMoments, least_squares, loss, phi, psi, second_moments
from torchdp.regression.gram import GramRelease
from torchdp.regression.local import LocalRows
from torchdp.regression.low_rank import predicted_psi, predicted_psi_of_sketch, random_psi, top_directions
from torchdp.regression.moments import FrequencyMoments, SecureHistogram, paper_moment_variance
from torchdp.regression.ridge import adaptive_ridge, predicted_phi, predicted_phi_of_sketch, solve_ridge
from torchdp.regression.second_moment_noise import NoisyMoments, debiased
from torchdp.regression.sensitivity import cross_sensitivity, gram_sensitivity, joint_sensitivity
from torchdp.regression.tables import Schema, load_csv

__all__ = [
    "AdaSSP",
    "FrequencyMoments",
    "GramRelease",
    "LocalRows",
    "ModSulq",
    "NoisyMoments",
    "Route",
    "RouteChoice",
    "Schema",
    "SecondMoments",
    "SecureHistogram",
    "SufficientStatistics",
    "adaptive_ridge",
    "choose_low_rank",
    "choose_regression",
    "clipped_rows",
    "cross_sensitivity",
    "debiased",
    "export_moments",
    "gram_sensitivity",
    "import_moments",
    "joint_sensitivity",
    "least_squares",
    "load_csv",
    "loss",
    "mod_sulq",
    "paper_adassp_scale",
    "paper_mod_sulq",
    "paper_moment_variance",
    "phi",
    "predicted_phi",
    "predicted_phi_of_sketch",
    "predicted_psi",
    "predicted_psi_of_sketch",
    "psi",
    "random_psi",
    "regression_rows",
    "rows_from_moments",
    "scaled_columns",
    "second_moments",
    "solve_ridge",
    "spectrum_rows",
    "top_directions",
]
