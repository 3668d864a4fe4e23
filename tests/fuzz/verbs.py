"""Every protocol's own verbs, and the public calls that ``recipes`` leaves out. Names: see :func:`names`."""

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch

from torchdp.noise import SeededNoise
from torchdp.protocol import InteractiveProtocol, MessageProtocol

spec = importlib.util.spec_from_file_location("fuzz_recipes_of_verbs", Path(__file__).parent / "recipes.py")
sys.modules[spec.name] = recipes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipes)

# made of the names of ``recipes``, beside users' data that it takes
PROTOCOLS = {
    "RandomizedResponse": ("randomizers.RandomizedResponse(3, 1.0)", "types"),
    "HadamardResponse": ("randomizers.HadamardResponse(3, 1.0)", "types"),
    "OptimizedUnaryEncoding": ("randomizers.OptimizedUnaryEncoding(3, 1.0)", "types"),
    "SymmetricUnaryEncoding": ("randomizers.SymmetricUnaryEncoding(3, 1.0)", "types"),
    "SubsetSelection": ("randomizers.SubsetSelection(3, 1.0)", "types"),
    "StrategyMatrix": ("randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4)", "types"),
    "ShiftStrategy": ("randomizers.ShiftStrategy(torch.eye(3).bool(), torch.ones(3), 3, 1.0)", "types"),
    "PrivUnit": ("randomizers.PrivUnit(2, 1.0)", "points"),
    "PrivUnitG": ("randomizers.PrivUnitG(2, 1.0)", "points"),
    "ProjUnit": ("randomizers.ProjUnit(2, 1.0, k=2)", "points"),
    "DuchiJordanWainwright": ("randomizers.DuchiJordanWainwright(2, 1.0)", "points"),
    "PointRelease": ("randomizers.PointRelease(2, 1.0)", "points"),
    "GaussianVector": ("randomizers.GaussianVector(2, 1.0, delta=1e-3)", "points"),
    "LocalOracle": ("queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0))", "types"),
    "LocalFactorization": (
        "queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W), epsilon=1.0)",
        "types",
    ),
    "CentralFactorization": ("queries.CentralFactorization(queries.FactoredQueries.plain(W), 1.0, 1e-5)", "types"),
    "IntegerSums": ("queries.IntegerSums(2, 3.0, 4.0, 1e-5)", "labelled"),
    "PrivateLearner": ("queries.PrivateLearner.calibrated(queries.thresholds(3), epsilon=1.0)", "labelled"),
    "TwoMessage": ("pairwise.TwoMessage(pairwise.unequal(3), 1.0)", "types"),
    "OneMessage": ("pairwise.OneMessage(pairwise.unequal(3), 1.0)", "types"),
    "OneMessagePairs": ("pairwise.OneMessagePairs(pairwise.unequal(3), 1.0)", "types"),
    "SubsetPairs": ("pairwise.SubsetPairs(pairwise.unequal(3), 1.0)", "types"),
    "RandomizedResponsePlugIn": ("pairwise.RandomizedResponsePlugIn(pairwise.unequal(3), 1.0)", "types"),
    "StrategyReports": (
        "pairwise.StrategyReports(pairwise.unequal(3), 1.2, "
        "randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4))",
        "types",
    ),
    "TwoRound": ("pairwise.TwoRound(pairwise.unequal(3), 1.0, 0.5)", "types"),
    "ThreeRound": ("pairwise.ThreeRound(pairwise.unequal(3), 4.0, (1.0, 1.0, 1.0, 1.0))", "types"),
    "ProjectedTwoRound": ("pairwise.ProjectedTwoRound(pairwise.unequal(3), 3.0, (1.0, 1.0, 1.0))", "types"),
    "ShuffledForm": ("pairwise.ShuffledForm(pairwise.unequal(3), 1.0, 5, 200.0, 1e-2)", "types"),
    "Round": ("pairwise.rounds.Round(points, (1.0,))", "types"),
    "GaussianMean": ("mean.GaussianMean(polytope, shape, 1.0, 1e-5)", "points"),
    "GaussianCovariance": ("mean.GaussianCovariance(polytope, shape, 1.0, 1e-5)", "points"),
    "GaussianMoments": ("mean.GaussianMoments(ball, round, 1.0, 1e-5, 2)", "points"),
    "LocalMean": ("mean.LocalMean.calibrated(polytope, shape, epsilon=1.0)", "points"),
    "Response": ("shuffle.BitSums(shuffle.RandomizedResponseSum(5, 0.2), 2, 1e-3)", "bits"),
    "Poisson": ("shuffle.BitSums(shuffle.PoissonSum(5, 30.0), 2, 1e-3)", "bits"),
    "NegativeBinomial": ("shuffle.BitSums(shuffle.NegativeBinomialSum(5, 20.0, 0.5), 2, 1e-3)", "bits"),
    "Correlated": ("shuffle.BitSums(shuffle.CorrelatedSum(5, 0.5, 9.0, 0.5), 2, 1e-2)", "bits"),
    "Pure": ("shuffle.BitSums(shuffle.PureSum(5, 1.0, 0.3, 0.1), 2, 0.0)", "bits"),
    "Curator": ("shuffle.CuratorSums(shuffle.CentralGaussianSum(5, 1.0), 2, 1e-3)", "bits"),
    "RoundedCurator": ("shuffle.CuratorSums(shuffle.RoundedGaussianSum(5, 1.0), 2, 1e-3)", "bits"),
    "ShuffledKDE": ("kde", "rows"),
    "CentralKDE": ("density.CentralKDE.calibrated(features, 5, 1.0, 1e-5)", "rows"),
    "SecureSketch": ("secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5)", "rows"),
    "GramRelease": ("regression.GramRelease(5, 2, 1.0, 1.0, 1e-5)", "rows"),
    "LocalRows": ("regression.LocalRows(2, 1.0, 1.0, 1e-5)", "rows"),
    "ModSulq": ("regression.ModSulq.calibrated(2, 1.0, 1.0, 1e-5)", "rows"),
    "SufficientStatistics": ("regression.SufficientStatistics(1, 1.0, 1.0, 1.0, 1e-5)", "rows"),
    "AdaSSP": ("regression.AdaSSP(1, 1.0, 1.0, 1.0, 1e-5)", "rows"),
    "FrequencyMoments": ("regression.FrequencyMoments(5, 1.0, (1.0, 2.0), 1.0)", "labels"),
    "SecureHistogram": ("regression.SecureHistogram(5, 3, 1.0)", "types"),
}
FAST = {
    "SubsetSelection", "PrivUnit", "IntegerSums", "OneMessage", "TwoRound", "GaussianMean", "Poisson", "CentralKDE",
    "SecureSketch", "GramRelease",
}  # fmt: skip
OF_ALL = (
    "admit(USER.x)", "collect(USER.x, noise=noise)", "estimate(USER.x, noise=noise)", "check(USER.tally)",
    "analyse(USER.tally)", "exact(USER.summary)", "predicted_mse(USER.summary)",
    "worst_mse(5, protocol.Objective.MEAN)", "sample_tally(USER.summary, generator=generator, sample_shape=(2,))",
    "sample_estimate(USER.summary, generator=generator, sample_shape=(2,))",
)  # fmt: skip
OF_MESSAGES = (
    "randomize(USER.x, noise=noise)", "tally(USER.messages)", "add(USER.tally, USER.tally)", "encode(USER.messages)",
    "decode(USER.data)",
)  # fmt: skip


@cache
def kept():
    found = dict(recipes.kept())
    ball = found["domains"].lp_ball(2, 2.0, 1.0)
    found |= {"ball": ball, "round": found["domains"].round_shape(ball, 2.0)}
    at = {}
    for name, (made, data) in PROTOCOLS.items():
        protocol, x = eval(made, found), found[data]
        kinds = {"protocol": protocol, "x": x, "summary": protocol.summary(protocol.admit(x))}
        kinds["tally"] = protocol.collect(x, noise=SeededNoise(1))
        if isinstance(protocol, MessageProtocol):
            kinds["messages"] = protocol.randomize(x, noise=SeededNoise(1))
            kinds["data"] = protocol.encode(kinds["messages"])
        at[name] = SimpleNamespace(**kinds)
    return found | {"at": at}


def names():
    """What a recipe may call; randomness is new each time."""
    return kept() | {"generator": torch.Generator().manual_seed(1), "noise": SeededNoise(1)}


def verbs(name):
    """The recipes of one protocol."""
    protocol = kept()["at"][name].protocol
    some = OF_ALL + OF_MESSAGES * isinstance(protocol, MessageProtocol)
    if isinstance(protocol, InteractiveProtocol):
        some = (*some, "round(())")
    user = f"at['{name}']"
    return [f"{user}.protocol.{verb.replace('USER', user)}" for verb in some]
