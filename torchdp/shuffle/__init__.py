"""Bitsum protocols in the shuffle model: messages, exact sums, exact dominating pairs and their composition."""

from torchdp.shuffle.accounting import delta_of, epsilon_of, guarantee
from torchdp.shuffle.bitsum import BitSum, ShuffledBitSum
from torchdp.shuffle.calibrate import calibrate, calibrate_correlated, calibrate_negative_binomial
from torchdp.shuffle.correlated import CorrelatedSum
from torchdp.shuffle.messages import Messages, join, shuffle
from torchdp.shuffle.one_type import NegativeBinomialSum, OneTypeSum, PoissonSum
from torchdp.shuffle.paper import (
    paper_composition,
    paper_correlated,
    paper_correlated_one,
    paper_poisson,
    paper_pure,
    paper_randomized_response,
    paper_split,
)
from torchdp.shuffle.pure import PureSum, pure_sum
from torchdp.shuffle.references import CentralGaussianSum, CuratorSum, ExactSum
from torchdp.shuffle.response import RandomizedResponseSum
from torchdp.shuffle.rounded import calibrate_rounded, rounded_delta_of, rounded_guarantee

__all__ = [
    "BitSum",
    "CentralGaussianSum",
    "CorrelatedSum",
    "CuratorSum",
    "ExactSum",
    "Messages",
    "NegativeBinomialSum",
    "OneTypeSum",
    "PoissonSum",
    "PureSum",
    "RandomizedResponseSum",
    "ShuffledBitSum",
    "calibrate",
    "calibrate_correlated",
    "calibrate_negative_binomial",
    "calibrate_rounded",
    "delta_of",
    "epsilon_of",
    "guarantee",
    "join",
    "paper_composition",
    "paper_correlated",
    "paper_correlated_one",
    "paper_poisson",
    "paper_pure",
    "paper_randomized_response",
    "paper_split",
    "pure_sum",
    "rounded_delta_of",
    "rounded_guarantee",
    "shuffle",
]
