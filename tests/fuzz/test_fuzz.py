"""Bad input gets a clear error: every public way in, each argument in turn."""

import ast
import copy
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from contract import entries
from fuzz import harness, recipes, verbs
from test_architecture import concrete

from torchdp.protocol import Protocol

HERE = Path(__file__).parent
slow = pytest.mark.slow
LONG = re.compile(r"fresh\.at|free_constant|PoissonSum\.calibrated\(9, 4")
CALLS = [(room, recipe) for room, lines in recipes.ALL.items() for recipe in lines]


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(recipe, marks=slow if LONG.search(recipe) else ()) for _, recipe in CALLS],
    ids=[f"{r}-{i}" for i, (r, _) in enumerate(CALLS)],
)
def test_bad_input_gets_a_clear_error(recipe, tmp_path, monkeypatch):
    # "x" is a file's name
    monkeypatch.chdir(tmp_path)
    found, made = harness.faults(recipe, recipes.names)
    assert made or "()" in recipe
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", verbs.FAST)
def test_every_verb_of_a_protocol(name):
    found = [
        fault for recipe in verbs.verbs(name) for fault in harness.faults(recipe, verbs.names)[0]
    ]
    assert not found, "\n".join(found)


@slow
def test_every_verb_of_every_protocol():
    for name in entries():
        test_every_verb_of_a_protocol(name)


@slow
@pytest.mark.parametrize("recipe", verbs.OTHERS)
def test_calls_of_parts(recipe):
    found, made = harness.faults(recipe, verbs.names)
    assert made and not found, "\n".join(found)


def test_no_protocol_is_left_out():
    """Every concrete protocol has an entry in the battery."""
    assert set(concrete(Protocol)) <= {
        type(entry.protocol).__name__ for entry in entries().values()
    }


# constructors that no other recipe calls with tensors
MORE = (
    "domains.LpBall(prior, 1.5, prior)", "domains.balls.BallSum(W, ((3, 2.0),), prior)",
    "domains.composite.LinearImage(W, domains.Polytope(W))",
    "workloads.RunningSums(3, rates=prior)", "training.Iterates(3, learning_rates=prior)",
    "training.Descent(3, learning_rates=prior)",
    "density.ShuffledKDE(features, shuffle.PoissonSum(5, 50.0), 0.1, steps=prior.new_full((features.instances,), 2.0))",
    "factorization.BandedStrategy(prior[None], 5)", "factorization.BandedStrategy(W.abs() + 1.0, 3)",
    "factorization.BufferedStrategy(prior[:1], prior[1:2], prior, prior)",
    "factorization.RecalledStrategy(factorization.BufferedStrategy(prior[:1], prior[1:2], prior, prior), 1, W[:1])",
    "factorization.Recurrence(len(prior), prior, prior[:, None], gains=prior, decays=-prior, of_w=W[:1], of_u=W[:1])",
    "queries.Linear(W)", "pairwise.DegreeStatistic(W + W.T)",
    "workloads.Workload('W', (W, eye))", "queries.ConceptClass(tuple('abc'), (torch.ones(3, 2),))",
    "domains.NoiseShape(*(getattr(shape, f) for f in 'root centre support weights row_weights p certificate'.split()))",
    "sketching.GaussianNoise(prior)", "sketching.LaplaceNoise(1.0, counts)",
)  # fmt: skip
# no guarantee hangs on what they hold: answers, bounds, messages, public features and their errors
RESULTS = {
    "Consistent", "Covariance", "Density", "Difference", "Estimate", "NoisyMoments", "MeanSquaredError", "MannWhitney",
    "Certificate", "Factorization", "Gamma2Dual", "HardInstance", "SignatureFactorization", "StreamFactorization",
    "RunningFactorization", "GramFactorization", "Crowd", "Words", "Plan", "ConsistentPairs",
    "ShuffledMessages",
    "VarianceWitness", "NormError", "Maximum", "SecondMoments", "Features", "ErrorParts", "Discretised", "Sweep",
    "Trial", "Waves",
}  # fmt: skip


def parts(value):
    """The tensors of a field."""
    return [
        t
        for t in (value if isinstance(value, tuple | list) else [value])
        if isinstance(t, torch.Tensor)
    ]


def harmless(kind):
    return any(base.__name__ in RESULTS for base in kind.__mro__)


def of_recipe(text, known):
    """The dataclasses that a recipe's calls of classes make."""
    tree = ast.parse(text, mode="eval")
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        name = ast.unparse(node.func)
        kind = None
        if name.replace(".", "").isidentifier() and "fresh" not in text:
            kind = eval(name, known)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield eval(ast.unparse(node), known)


def test_guarantee_nothing_hangs_on_tensors_that_whoever_gave_them_can_still_edit():
    """Every public dataclass that is made of tensors is made again of copies, which are then
    overwritten.
    """
    known = verbs.names()
    public = set()
    for room in recipes.ROOMS.split():
        for kind in vars(known[room]).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                fields = [f for f in dataclasses.fields(kind) if f.init]
                if any("Tensor" in str(f.type) for f in fields):
                    public.add(kind)
    texts = [*(recipe for _, recipe in CALLS), *MORE]
    left = [made for text in texts for made in of_recipe(text, known)]
    left += [entry.protocol for entry in entries().values()]
    seen = set()
    while left:
        made = left.pop()
        kind = type(made)
        given = {f.name: getattr(made, f.name) for f in dataclasses.fields(kind) if f.init}
        left += [
            v for v in given.values() if dataclasses.is_dataclass(v) and not isinstance(v, type)
        ]
        given = copy.deepcopy(given)
        again = kind(**given)
        before = {name: [t.clone() for t in parts(getattr(again, name))] for name in given}
        for t in (t for value in given.values() for t in parts(value)):
            t.zero_()
        for name, old in before.items():
            new = parts(getattr(again, name))
            kept = all(torch.equal(t, u) for t, u in zip(new, old, strict=True))
            assert kept or harmless(kind), (kind, name)
        seen |= {kind} if any(before.values()) else set()
    assert not {kind.__name__ for kind in public - seen if not harmless(kind)}


def test_raw_errors_and_silent_nans_are_seen():
    raw = {
        "first": lambda x: x.shape[0] + 1,
        "root": lambda x: x.sqrt(),
        "W": recipes.names()["W"],
    }
    assert len(harness.faults("first(W)", lambda: raw)[0]) >= 5
    assert any("NaN" in fault for fault in harness.faults("root(W.abs())", lambda: raw)[0])
