"""What one user runs: messages with an exact privacy guarantee, exact moments, and exact sums over users."""

from torchdp.randomizers.alphabet.bit_vectors import OptimizedUnaryEncoding, SymmetricUnaryEncoding
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.hadamard_response import HadamardResponse
from torchdp.randomizers.alphabet.learned import LearnedStrategy, answer_variances, worst_query_strategy
from torchdp.randomizers.alphabet.randomized_response import FiniteMoments, RandomizedResponse
from torchdp.randomizers.alphabet.strategy import StrategyMatrix
from torchdp.randomizers.alphabet.strategy_bound import VarianceWitness, certify_variance, strategy_lower_bound
from torchdp.randomizers.alphabet.strategy_search import Objective, optimize_strategies, optimize_strategy
from torchdp.randomizers.alphabet.subset_selection import SubsetSelection
from torchdp.randomizers.ball.ball import BallMoments, BallRandomizer
from torchdp.randomizers.ball.gaussian_vector import GaussianVector
from torchdp.randomizers.ball.privunit import PrivUnit
from torchdp.randomizers.ball.privunitg import PrivUnitG
from torchdp.randomizers.ball.projunit import ProjUnit
from torchdp.randomizers.ball.sign_rounding import DuchiJordanWainwright, PointRelease
from torchdp.randomizers.ball.subgaussian import SubGaussian
from torchdp.randomizers.ball.tilted_normal import TiltedNormal
from torchdp.randomizers.old import LocalRandomizer

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
