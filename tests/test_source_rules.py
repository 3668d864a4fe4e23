"""What no line of the library may be, held by reading its code: a run would see one case, this sees the next one."""

import ast
import math
import struct
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted({path.resolve() for folder in ("torchdp", "kernels") for path in (ROOT / folder).rglob("*.py")})


UNTYPED = {"tensor": 1, "scalar_tensor": 1, "as_tensor": 1, "full": 2, "linspace": 3, "logspace": 3}  # arguments


def asserts(node: ast.AST) -> bool:
    """It would disappear under ``python -O``."""
    return isinstance(node, ast.Assert)


def rounds_two_numbers(node: ast.AST) -> bool:
    """torch.where of two Python numbers is float32, so that one that float32 does not hold is off by up to 6e-8."""
    named = isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.where" and len(node.args) == 3
    values = [number(argument) for argument in node.args[1:]] if named else [None]
    return None not in values and not all(map(of_single_precision, values))


def takes_the_default_type(node: ast.AST) -> bool:
    """Python numbers become float32 in torch.tensor and its kin where no dtype is said: half the digits are lost."""
    named = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
    )
    if not named or node.func.attr not in UNTYPED:
        return False
    return len(node.args) <= UNTYPED[node.func.attr] and all(key.arg != "dtype" for key in node.keywords)


def number(node: ast.expr) -> float | None:
    """The value of an expression of numbers; NaN where a name decides it; None where it may be a tensor."""
    match node:
        case ast.Constant(value=int() | float()):
            return float(node.value)
        case ast.UnaryOp(operand=operand):
            value = number(operand)
            return None if value is None else -value
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return math.inf if name == "inf" else math.nan
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"))) | ast.Call(func=ast.Name(id="float")):
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
    """int and float read 1_75, and digits of every script, as options; ``text`` has ``integer`` and ``number``."""
    return isinstance(node, ast.keyword) and node.arg == "type" and ast.unparse(node.value) in ("int", "float")


RULES = (asserts, rounds_two_numbers, takes_the_default_type, prints, parses_loosely)
MAY = {prints: ("text.py", "report.py", "experiment.py")}  # the last two speak for experiments


def broken(rules, source: str) -> list[tuple[str, int]]:
    """Rules that a source breaks, and where."""
    nodes = list(ast.walk(ast.parse(source)))
    return [(rule.__name__, getattr(node, "lineno", 0)) for rule in rules for node in nodes if rule(node)]


def lines(rule, source: str) -> list[int]:
    return [line for _, line in broken([rule], source)]


def test_no_line_breaks_a_rule():
    held = {path: [rule for rule in RULES if path.name not in MAY.get(rule, ())] for path in FILES}
    found = {str(path.relative_to(ROOT)): broken(rules, path.read_text()) for path, rules in held.items()}
    assert not {path: wrong for path, wrong in found.items() if wrong}


def test_the_search_sees_every_room_and_finds_what_it_looks_for():
    assert {"torchdp", "privacy", "randomizers", "privunit"} <= {path.parent.name for path in FILES}
    assert lines(asserts, "def f(x):\n    assert x\n") == [2]
    assert lines(prints, "say(1)\nprint(1)") == lines(parses_loosely, "f(type=number)\nf(type=int)") == [2]
    untyped = ("tensor(0.1)", "as_tensor(a.sigma, device=d)", "full((2,), x)", "linspace(0, 1, 5)")
    assert all(lines(takes_the_default_type, f"torch.{call}") == [1] for call in untyped)
    assert not lines(
        takes_the_default_type, "torch.tensor(0.1, dtype=t)\nx.new_tensor(0.1)\ntorch.full((2,), 1, dtype=t)"
    )
    wrong = ("1.0, math.sqrt(2)", "0.1, 1", "float(a), 0.0", "-0.3, 1.0", "1.0, 1 - math.exp(-e)")
    right = ("1.0, -1.5", "x, 0.1", "0.0, -math.inf", "x, y")
    assert all(lines(rounds_two_numbers, f"torch.where(c, {values})") == [1] for values in wrong)
    assert not any(lines(rounds_two_numbers, f"torch.where(c, {values})") for values in right)
