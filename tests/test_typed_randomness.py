"""The two kinds of randomness never meet: held for every function of the library, by reading its code.

What users and curators send takes ``noise``; the law in simulation and public draws take ``generator``; samplers inside
take ``draws``. A test that runs would see one call; this one sees a verb that somebody adds.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path for path in (ROOT / "torchdp").iterdir() if path.is_dir() and path.name != "kernels")
SPEAK = {"randomize", "collect", "estimate", "answer", "release", "learn", "messages", "add_share", "mechanism"}
TORCH = {"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "poisson", "binomial"}
OWN = {"Generator", "keyed_generator", "SeededNoise", "manual_seed"}
IN_PLACE = {"random_", "uniform_", "normal_", "exponential_", "bernoulli_", "geometric_", "log_normal_", "cauchy_"}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def arguments(function):
    every = function.args
    return {a.arg for a in every.posonlyargs + every.args + every.kwonlyargs}


def defaults_to_none(function, name):
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return any(a.arg == name and isinstance(d, ast.Constant) and d.value is None for a, d in pairs)


def torch_draws(tree, of_the_global=False):
    """Names of torch's own draws that are called in the tree."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner, given = call.func.value, any(k.arg == "generator" for k in call.keywords)
            of_torch = isinstance(owner, ast.Name) and owner.id == "torch" and call.func.attr in TORCH
            if (of_torch or call.func.attr in IN_PLACE) and not (of_the_global and given):
                yield call.func.attr


def faults(code, room="mean"):
    """Sentences about what breaks the rule in one file's code."""
    tree, found = ast.parse(code), []
    for function in functions(tree):
        taken, name = arguments(function), function.name
        public = not name.startswith("_")
        if len(taken & {"noise", "generator", "draws"}) > 1:
            found.append(f"{name} takes more than one source of randomness")
        if public and name in SPEAK and "generator" in taken and room != "simulate":
            found.append(f"{name} sends under a guarantee and takes a generator")
        if public and "noise" in taken and room != "training" and name.startswith(("sample_", "draw")):
            found.append(f"{name} simulates or publishes and takes noise")
        if public and name in SPEAK and "noise" in taken and not defaults_to_none(function, "noise"):
            found.append(f"{name}: noise must be a keyword that is None, the system's, by default")
        if taken & {"noise", "draws", "generator"}:
            called = {
                ast.unparse(call.func).split(".")[-1] for call in ast.walk(function) if isinstance(call, ast.Call)
            }
            found += [f"{name} is given randomness and makes its own by {what}" for what in sorted(called & OWN)]
        if "noise" in taken or "draws" in taken or (name in SPEAK and room != "simulate"):
            found += [f"{name} draws by torch.{what}, not from its draws" for what in torch_draws(function)]
    found += [f"torch.{what} draws from the global generator" for what in torch_draws(tree, of_the_global=True)]
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_one_type_for_one_purpose(room):
    found = {path.name: faults(path.read_text(), room.name) for path in room.rglob("*.py")}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_simulated_users_stay_in_simulations(room):
    """``SeededNoise.of(generator)`` stands where the law is sampled, never under a verb that sends."""
    for path in room.rglob("*.py"):
        for function in functions(ast.parse(path.read_text())):
            if "SeededNoise.of(" in ast.unparse(function):
                assert "generator" in arguments(function) and function.name not in SPEAK, (path, function.name)


@pytest.mark.parametrize(
    "code",
    [
        "def collect(self, x, *, generator): ...",
        "def randomize(self, x, *, noise): ...",
        "def sample_sums(self, x, *, noise=None): ...",
        "def collect(self, x, *, noise=None, generator=None): ...",
        "def total(x, draws): return torch.randn(3, generator=draws.generator)",
        "def public(dim): return torch.randn(dim)",
        "def total(x, draws): return x.uniform_(generator=draws.generator)",
        "def sample_unchecked(self, summary, draws, shape): return normals(torch.Generator().manual_seed(0))",
    ],
)
def test_the_rule_sees_a_fault(code):
    assert faults(code)
