"""No Python number becomes float32 by torch's default type: held for every call of the library, by reading its code.

``torch.where`` of two Python numbers, and ``torch.tensor``, ``as_tensor``, ``full``, ``linspace`` and ``logspace`` of
Python numbers, take the default type: e^-epsilon loses half its digits before ``.double()`` comes.
"""

import ast
import math

import pytest
from test_no_assert import FILES, ROOT

TYPED = {
    "tensor": 1,
    "scalar_tensor": 1,
    "as_tensor": 1,
    "full": 2,
    "linspace": 3,
    "logspace": 3,
}  # where a dtype may stand
CONSTANTS = {*(f"{m}.{n}" for m in ("math", "torch") for n in ("inf", "nan", "pi")), "self.epsilon"}
NUMBERS = {"float", "int", "abs", "max", "min", "round", "len"}


def name_of(node: ast.expr) -> str:
    """Of a name, or of an attribute of one."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def a_number(node: ast.expr, known: set[str]) -> bool:
    """Whether it is a Python number, as far as the code of one function tells."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.UnaryOp):
        return a_number(node.operand, known)
    if isinstance(node, ast.BinOp):
        return a_number(node.left, known) and a_number(node.right, known)
    if isinstance(node, ast.IfExp):
        return a_number(node.body, known) and a_number(node.orelse, known)
    if isinstance(node, ast.Attribute):
        return name_of(node) in CONSTANTS
    if isinstance(node, ast.Call):
        name = name_of(node.func)
        return name.startswith("math.") or (name in NUMBERS and all(a_number(each, known) for each in node.args))
    return False


def numbers_of(function: ast.FunctionDef) -> set[str]:
    """Arguments said to be float or int, and names that are given Python numbers alone."""
    every = function.args.args + function.args.kwonlyargs
    known = {a.arg for a in every if a.annotation and ast.unparse(a.annotation) in ("float", "int")}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and a_number(node.value, known):
            known |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return known


def faults(source: str) -> list[str]:
    tree, found, known = ast.parse(source), [], {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            own = numbers_of(function)
            known.update({id(node): own for node in ast.walk(function) if isinstance(node, ast.Call)})
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and name_of(call.func).startswith("torch.")):
            continue
        name, own = name_of(call.func)[6:], known.get(id(call), set())
        if name == "where" and len(call.args) == 3 and all(a_number(each, own) for each in call.args[1:]):
            found.append(
                f"line {call.lineno}: torch.where of two Python numbers; make one a tensor of the type wanted"
            )
        untyped = len(call.args) <= TYPED.get(name, math.inf) and all(k.arg != "dtype" for k in call.keywords)
        if name in TYPED and untyped:
            found.append(f"line {call.lineno}: torch.{name} without dtype")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_number_takes_the_default_type(path):
    assert faults(path.read_text()) == []


def test_the_rule_sees_what_it_looks_for():
    for wrong in (
        "torch.where(c, 1.0, math.exp(-e))",
        "torch.where(c, -1, 1)",
        "torch.tensor(0.1)",
        "torch.full((2,), x)",
        "def f(x: float):\n    low = 2 * x\n    return torch.where(c, 1.0, low)",
        "torch.as_tensor(noise.sigma, device=d)",
    ):
        assert len(faults(wrong)) == 1, wrong
    assert not faults("torch.where(c, 1.0, low)\ntorch.where(c, x, 0.0)\ntorch.tensor(0.1, dtype=torch.float64)")
