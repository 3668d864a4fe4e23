"""What one user runs: messages with an exact privacy guarantee, exact moments, and exact sums over users."""

from torchdp.randomizers.ball import BallMoments, BallRandomizer
from torchdp.randomizers.base import LocalRandomizer
from torchdp.randomizers.bit_vectors import OptimizedUnaryEncoding, SymmetricUnaryEncoding
from torchdp.randomizers.frequency import FrequencyOracle
from torchdp.randomizers.gaussian_vector import GaussianVector
from torchdp.randomizers.hadamard_response import HadamardResponse
from torchdp.randomizers.learned import LearnedStrategy, answer_variances, worst_query_strategy
from torchdp.randomizers.privunit import PrivUnit
from torchdp.randomizers.privunitg import PrivUnitG
from torchdp.randomizers.projunit import ProjUnit
from torchdp.randomizers.randomized_response import FiniteMoments, RandomizedResponse
from torchdp.randomizers.sign_rounding import DuchiJordanWainwright, PointRelease
from torchdp.randomizers.strategy import StrategyMatrix
from torchdp.randomizers.strategy_bound import VarianceWitness, certify_variance, strategy_lower_bound
from torchdp.randomizers.strategy_search import Objective, optimize_strategies, optimize_strategy
from torchdp.randomizers.subgaussian import SubGaussian
from torchdp.randomizers.subset_selection import SubsetSelection
from torchdp.randomizers.tilted_normal import TiltedNormal

__all__ = [
    "BallMoments",
    "BallRandomizer",
    "DuchiJordanWainwright",
    "FiniteMoments",
    "FrequencyOracle",
    "GaussianVector",
    "HadamardResponse",
    "LearnedStrategy",
    "LocalRandomizer",
    "Objective",
    "OptimizedUnaryEncoding",
    "PointRelease",
    "PrivUnit",
    "PrivUnitG",
    "ProjUnit",
    "RandomizedResponse",
    "StrategyMatrix",
    "SubGaussian",
    "SubsetSelection",
    "SymmetricUnaryEncoding",
    "TiltedNormal",
    "VarianceWitness",
    "answer_variances",
    "certify_variance",
    "optimize_strategies",
    "optimize_strategy",
    "strategy_lower_bound",
    "worst_query_strategy",
]
