"""What no line of the library may be, held by reading its code: a run would see one case, this sees
the next one.

And the two kinds of randomness never meet: what users and curators send takes ``noise``; the law in
simulation and public draws take ``generator``; samplers inside take ``draws``.
"""

import ast
import math
import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    {path.resolve() for folder in ("torchdp", "kernels") for path in (ROOT / folder).rglob("*.py")}
)


# arguments
UNTYPED = {
    "tensor": 1,
    "scalar_tensor": 1,
    "as_tensor": 1,
    "full": 2,
    "linspace": 3,
    "logspace": 3,
}
ROOMS = sorted(
    path for path in (ROOT / "torchdp").iterdir() if path.is_dir() and path.name != "kernels"
)
SPEAK = {
    "randomize",
    "collect",
    "estimate",
    "answer",
    "release",
    "learn",
    "messages",
    "add_share",
    "mechanism",
}
TORCH = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "binomial",
}
OWN = {"Generator", "keyed_generator", "SeededNoise", "manual_seed"}
IN_PLACE = {
    "random_",
    "uniform_",
    "normal_",
    "exponential_",
    "bernoulli_",
    "geometric_",
    "log_normal_",
    "cauchy_",
}


def asserts(node: ast.AST) -> bool:
    """It would disappear under ``python -O``."""
    return isinstance(node, ast.Assert)


def rounds_two_numbers(node: ast.AST) -> bool:
    """torch.where of two Python numbers is float32, so that one that float32 does not hold is off
    by up to 6e-8.
    """
    named = (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "torch.where"
        and len(node.args) == 3
    )
    values = [number(argument) for argument in node.args[1:]] if named else [None]
    return None not in values and not all(map(of_single_precision, values))


def takes_the_default_type(node: ast.AST) -> bool:
    """Python numbers become float32 in torch.tensor and its kin where no dtype is said: half the
    digits are lost.
    """
    named = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
    )
    if not named or node.func.attr not in UNTYPED:
        return False
    return len(node.args) <= UNTYPED[node.func.attr] and all(
        key.arg != "dtype" for key in node.keywords
    )


def number(node: ast.expr) -> float | None:
    """The value of an expression of numbers; NaN where a name decides it; None where it may be a
    tensor.
    """
    match node:
        case ast.Constant(value=int() | float()):
            return float(node.value)
        case ast.UnaryOp(operand=operand):
            value = number(operand)
            return None if value is None else -value
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return math.inf if name == "inf" else math.nan
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id="math")))
            | ast.Call(func=ast.Name(id="float"))
        ):
            return math.nan
        case ast.BinOp(left=left, right=right):
            return None if number(left) is None or number(right) is None else math.nan
    return None


def of_single_precision(value: float) -> bool:
    return math.isinf(value) or struct.unpack("f", struct.pack("f", value))[0] == value


def prints(node: ast.AST) -> bool:
    """``text.say`` escapes what no terminal should obey."""
    printing = ("print", "sys.stdout.write", "sys.stderr.write")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in printing


def parses_loosely(node: ast.AST) -> bool:
    """int and float read 1_75, and digits of every script, as options; ``text`` has ``integer`` and
    ``number``.
    """
    return (
        isinstance(node, ast.keyword)
        and node.arg == "type"
        and ast.unparse(node.value) in ("int", "float")
    )


RULES = (asserts, rounds_two_numbers, takes_the_default_type, prints, parses_loosely)
# the last speaks for experiments
MAY = {prints: ("text.py", "report.py")}


def broken(rules, source: str) -> list[tuple[str, int]]:
    """Rules that a source breaks, and where."""
    nodes = list(ast.walk(ast.parse(source)))
    return [
        (rule.__name__, getattr(node, "lineno", 0))
        for rule in rules
        for node in nodes
        if rule(node)
    ]


def lines(rule, source: str) -> list[int]:
    return [line for _, line in broken([rule], source)]


def test_no_line_breaks_a_rule():
    held = {path: [rule for rule in RULES if path.name not in MAY.get(rule, ())] for path in FILES}
    found = {
        str(path.relative_to(ROOT)): broken(rules, path.read_text()) for path, rules in held.items()
    }
    assert not {path: wrong for path, wrong in found.items() if wrong}


def test_the_search_sees_every_room_and_finds_what_it_looks_for():
    assert {"torchdp", "privacy", "randomizers", "privunit"} <= {path.parent.name for path in FILES}
    assert lines(asserts, "def f(x):\n    assert x\n") == [2]
    assert (
        lines(prints, "say(1)\nprint(1)")
        == lines(parses_loosely, "f(type=number)\nf(type=int)")
        == [2]
    )
    untyped = ("tensor(0.1)", "as_tensor(a.sigma, device=d)", "full((2,), x)", "linspace(0, 1, 5)")
    assert all(lines(takes_the_default_type, f"torch.{call}") == [1] for call in untyped)
    assert not lines(
        takes_the_default_type,
        "torch.tensor(0.1, dtype=t)\nx.new_tensor(0.1)\ntorch.full((2,), 1, dtype=t)",
    )
    wrong = ("1.0, math.sqrt(2)", "0.1, 1", "float(a), 0.0", "-0.3, 1.0", "1.0, 1 - math.exp(-e)")
    right = ("1.0, -1.5", "x, 0.1", "0.0, -math.inf", "x, y")
    assert all(lines(rounds_two_numbers, f"torch.where(c, {values})") == [1] for values in wrong)
    assert not any(lines(rounds_two_numbers, f"torch.where(c, {values})") for values in right)


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
            owner = call.func.value
            given = any(k.arg == "generator" for k in call.keywords)
            of_torch = (
                isinstance(owner, ast.Name) and owner.id == "torch" and call.func.attr in TORCH
            )
            if (of_torch or call.func.attr in IN_PLACE) and not (of_the_global and given):
                yield call.func.attr


def faults(code, room="mean"):
    """Sentences about what breaks the rule in one file's code."""
    tree = ast.parse(code)
    found = []
    for function in functions(tree):
        taken = arguments(function)
        name = function.name
        public = not name.startswith("_")
        if len(taken & {"noise", "generator", "draws"}) > 1:
            found.append(f"{name} takes more than one source of randomness")
        if public and name in SPEAK and "generator" in taken and room != "simulate":
            found.append(f"{name} sends under a guarantee and takes a generator")
        if (
            public
            and "noise" in taken
            and room != "training"
            and name.startswith(("sample_", "draw"))
        ):
            found.append(f"{name} simulates or publishes and takes noise")
        if (
            public
            and name in SPEAK
            and "noise" in taken
            and not defaults_to_none(function, "noise")
        ):
            found.append(f"{name}: noise must be a keyword that is None, the system's, by default")
        if taken & {"noise", "draws", "generator"}:
            called = {
                ast.unparse(call.func).split(".")[-1]
                for call in ast.walk(function)
                if isinstance(call, ast.Call)
            }
            found += [
                f"{name} is given randomness and makes its own by {what}"
                for what in sorted(called & OWN)
            ]
        if "noise" in taken or "draws" in taken or (name in SPEAK and room != "simulate"):
            found += [
                f"{name} draws by torch.{what}, not from its draws"
                for what in torch_draws(function)
            ]
    found += [
        f"torch.{what} draws from the global generator"
        for what in torch_draws(tree, of_the_global=True)
    ]
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_one_type_for_one_purpose(room):
    found = {path.name: faults(path.read_text(), room.name) for path in room.rglob("*.py")}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_simulated_users_stay_in_simulations(room):
    """``SeededNoise.of(generator)`` stands where the law is sampled, never under a verb that
    sends.
    """
    for path in room.rglob("*.py"):
        for function in functions(ast.parse(path.read_text())):
            if "SeededNoise.of(" in ast.unparse(function):
                assert "generator" in arguments(function) and function.name not in SPEAK, (
                    path,
                    function.name,
                )


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
