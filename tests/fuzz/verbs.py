"""Every protocol's own verbs, and in ``verbs.txt`` the public calls that ``recipes`` leaves out;
see :func:`names`.
"""

import importlib
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contract import entries
from fuzz import recipes

from torchdp.noise import SeededNoise
from torchdp.protocol import InteractiveProtocol, MessageProtocol

# protocols of the table of refusals, beside the battery's; made of the names of ``recipes``
SMALL = {
    "StrategyMatrix": (
        "randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4)",
        "types",
    ),
    "Adapted": (
        "queries.LocalOracle(W, randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4), "
        "adapted=True)",
        "types",
    ),
    "LocalOracle": ("queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0))", "types"),
    "LocalFactorization": (
        "queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W), epsilon=1.0)",
        "types",
    ),
    "PrivateLearner": (
        "queries.PrivateLearner.calibrated(queries.thresholds(3), epsilon=1.0)",
        "labelled",
    ),
    "TwoMessage": ("queries.Twice.of(pairwise.unequal(3), 1.0)", "types"),
    "OneMessage": ("queries.LocalFactorization.of(pairwise.unequal(3), 1.0)", "types"),
    "Subsets": (
        "queries.LocalOracle.of(pairwise.unequal(3), randomizers.SubsetSelection(3, 1.0))",
        "types",
    ),
    "Responses": (
        "queries.LocalOracle.of(pairwise.unequal(3), randomizers.RandomizedResponse(3, 1.0))",
        "types",
    ),
    "StrategyReports": (
        "queries.LocalOracle.of(pairwise.unequal(3), "
        "randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4))",
        "types",
    ),
    "GaussianMean": ("mean.GaussianMean(polytope, shape, 1.0, 1e-5)", "points"),
    "GaussianMoments": ("mean.GaussianMoments(ball, round, 1.0, 1e-5, 2)", "points"),
    "LocalMean": ("mean.LocalMean.calibrated(polytope, shape, epsilon=1.0)", "points"),
    "Response": ("shuffle.BitSums(shuffle.RandomizedResponseSum(5, 0.2), 2, 1e-3)", "bits"),
    "Poisson": ("shuffle.BitSums(shuffle.PoissonSum(5, 30.0), 2, 1e-3)", "bits"),
    "Correlated": ("shuffle.BitSums(shuffle.CorrelatedSum(5, 0.5, 9.0, 0.5), 2, 1e-2)", "bits"),
    "SecureSketch": ("secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5)", "rows"),
    "GramRelease": ("regression.GramRelease(5, 2, 1.0, 1.0, 1e-5)", "rows"),
    "LabelledGram": ("regression.GramRelease(5, 1, 1.0, 1.0, 1e-5, label_bound=1.0)", "rows"),
}
FAST = (
    "randomizers.SubsetSelection", "randomizers.PrivUnit", "queries.Adapted",
    "OneMessage", "pairwise.TwoRound", "mean.GaussianMean", "shuffle.Poisson", "density.Central",
    "secure.SecureSketch", "regression.GramRelease",
)  # fmt: skip
OF_ALL = (
    "validate(USER.x)", "collect(USER.x, noise=noise)", "estimate(USER.x, noise=noise)", "check(USER.tally)",
    "analyse(USER.tally)", "exact(USER.summary)", "predicted_mse(USER.summary)",
    "worst_mse(USER.tally.n, protocol.Objective.MEAN)",
    "sample_tally(USER.summary, generator=generator, sample_shape=(2,))",
    "sample_estimate(USER.summary, generator=generator, sample_shape=(2,))",
)  # fmt: skip
OF_MESSAGES = (
    "randomize(USER.x, noise=noise)", "tally(USER.messages)", "add(USER.tally, USER.tally)", "encode(USER.messages)",
    "decode(USER.data)",
)  # fmt: skip


class Users(dict):
    """Entries of the battery, and of ``SMALL``, with what their verbs take and give; made when
    asked for.
    """

    def __missing__(self, name):
        if name in SMALL:
            made, data = SMALL[name]
            protocol = eval(made, known())
            x = known()[data]
        else:
            entry = entries(name.split(".")[0])[name]
            protocol = entry.protocol
            x = entry.x
        tally = protocol.collect(x, noise=SeededNoise(1))
        found = {
            "protocol": protocol,
            "x": x,
            "summary": protocol.summary(protocol.validate(x)),
            "tally": tally,
        }
        if isinstance(protocol, MessageProtocol):
            sent = protocol.randomize(x, noise=SeededNoise(1))
            found |= {"messages": sent, "data": protocol.encode(sent)}
        self[name] = SimpleNamespace(**found, estimate=protocol.analyse(tally))
        return self[name]


@cache
def known():
    found = dict(recipes.kept())
    ball = found["domains"].lp_ball(2, 2.0, 1.0)
    ones = torch.ones(2, dtype=torch.float64)
    return found | {
        "ball": ball,
        "ones": ones,
        "round": found["domains"].round_shape(ball, 2.0),
        "at": Users(),
    }


@cache
def kept():
    found = known()
    central = found["density"].CentralKDE.calibrated(found["features"], 5, 1.0, 1e-5)
    classes = found["density"].ShuffledClasses((central,) * 2)
    reported = (found["rows"].repeat(2, 1), torch.arange(10) // 5)
    density = found["density"]
    law = found["shuffle"].CentralGaussianSum(5, 1.0)
    generator = torch.Generator().manual_seed(1)
    inner = density.InnerProduct(2).draw(1, generator=generator)
    products = density.ShuffledClasses((density.CentralKDE(inner, law, 1e-5),) * 2)
    rooms = ("rounded", "wire")
    return found | {
        **{room: importlib.import_module(f"torchdp.{room}") for room in rooms},
        "profiles": [importlib.import_module("torchdp.privacy.composition").gaussian_profile(1.0)],
        "Q": (torch.ones(3, 3) + torch.eye(3)).double() / 4,
        "running": found["workloads"].RunningSums(4),
        "densities": classes.estimate(reported, noise=SeededNoise(1)),
        "densities_of_products": products.estimate(reported, noise=SeededNoise(1)),
        "net": torch.nn.Linear(2, 1, dtype=torch.float64),
    }


def names():
    """What a recipe may call; randomness is new each time."""
    return kept() | {"generator": torch.Generator().manual_seed(1), "noise": SeededNoise(1)}


def verbs(name):
    """The recipes of one protocol."""
    protocol = known()["at"][name].protocol
    some = OF_ALL + OF_MESSAGES * isinstance(protocol, MessageProtocol)
    if isinstance(protocol, InteractiveProtocol):
        some = (*some, "round(())")
    user = f"at['{name}']"
    return [f"{user}.protocol.{verb.replace('USER', user)}" for verb in some]


OTHERS = (Path(__file__).parent / "verbs.txt").read_text().splitlines()
