"""Writes docs/mechanisms.md from the classes, their docstrings and the tests:
``python docs/mechanisms.py``.

A row for each protocol of each entry of the battery (``tests/contract.py``), and for each other
public name whose docstring has a ``Guarantees:`` line, with the tests of its package that are named
for a guarantee and reach that name.
"""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from contract import entries  # noqa: E402

PAGE = ROOT / "docs/mechanisms.md"
HEAD = """# Every mechanism, its guarantee and its test

Each row summarises one test class, built on `tests/contract.py`. Its test `test_guarantee_is_what_the_law_says`
computes the largest privacy loss of the output from the exact distributions, by code that shares nothing with the
protocol, and compares it with the guarantee. The *wrong constant* is the negative control: with it the same loss must
exceed it (`test_a_wrong_constant_breaks_the_guarantee`). *Tight*: the guarantee holds for no smaller epsilon.
Where the wrong constant is a client's, users send exactly what that client sends, and the client has its own row.
INTEGER and ROUNDED guarantees hold in finite-precision arithmetic, REAL ones over real numbers
([security](security.md)). This page is made by `python docs/mechanisms.py`.
"""
OTHERS = """## Other promises

Every other public name whose docstring has a `Guarantees:` line, and tests of that promise.

| name | tests |
|---|---|"""
ROOMS = sorted(path.stem for path in (ROOT / "docs/reference").glob("*.md"))
ELSEWHERE = {  # tests of another name than test_guarantee
    "density.Features": "density/test_density_privacy.py::"
    "test_guarantee_of_hashed_buckets_composes_one_instance_for_each_repetition",
    "privacy.sampled_multiplier": "privacy/test_sampling.py::test_the_least_multiplier",
    "shuffle.BitLaw": "shuffle/test_calibrate.py::"
    "test_guarantee_calibrated_protocols_are_private_and_need_their_noise",
    "sketching.entry_variance": "sketching/test_paper_corollaries.py::"
    "test_corollary_4_7_adds_s3_d_log_times_the_least_variance",
    **dict.fromkeys(
        ("sklearn.PrivateClassMeans", "sklearn.PrivatePCA", "sklearn.PrivateRidge"),
        "test_sklearn.py::test_guarantee_a_replaced_row_moves_the_release_as_far_as_its_noise_is_made_for",
    ),
    "training.Plan": "training/test_runs.py::test_steps_that_the_ledger_knows_are_never_drawn_again",
    "training.SampledBatches": "training/test_plan.py::"
    "test_sampled_batches_are_their_groups_independently_at_their_chance",
    "training.Run": "training/test_plan.py::test_a_run_adds_the_plans_noise_to_what_is_clipped",
    "training.choose": "training/test_plan.py::test_guarantee_an_attack_on_all_steps_attains_it_and_no_more",
}
# of what has a row itself
OWN = re.compile(r"Guarantees: (the best's|each route's|the client's) own")


def inside(protocol: Any) -> str:
    """What a user runs, where that is another public mechanism; of a release its channel, and what
    is inside of it.
    """
    channel = getattr(protocol, "channel", None)
    if channel is not None:
        return f" of {type(channel).__name__}{inside(channel)}"
    parts = (type(getattr(protocol, name, None)) for name in ("client", "law"))
    return next(
        (f" of {part.__name__}" for part in parts if part.__module__.startswith("torchdp")), ""
    )


def control(entry: Any) -> str:
    if hasattr(entry, "less"):
        return "less noise"
    if entry.test_a_wrong_constant_breaks_the_guarantee.__qualname__.startswith("Relay"):
        return "a client of 1.1 epsilon"
    if entry.test_a_wrong_constant_breaks_the_guarantee.__qualname__.startswith("Contract"):
        return ", ".join(f"{factor:g} {name}" for name, factor in entry.weaker.items())
    return "in its class"


def row(entry: Any) -> tuple[str, tuple[str, ...], str, str]:
    """Room; what the row is of; the test; the negative control."""
    protocol = entry.protocol
    kind, promise = type(protocol), protocol.guarantee
    about, colon, parts = promise.source.partition(" of: ")
    source = about + colon + "; ".join(dict.fromkeys(parts.split("; ")))
    what = (
        f"`{kind.__name__}`{inside(protocol)}", promise.model.value, "tight" if promise.exact else "a bound",
        promise.neighbours.name.replace("_", " ").lower(), promise.arithmetic.name, source.replace("|", "\\|"),
    )  # fmt: skip
    # else it is a cell of a grid
    written = f"class {entry.__name__}" in (ROOT / entry.page).read_text()
    test = f"{entry.page}::{entry.__name__}" if written else entry.page
    return kind.__module__.split(".")[1], what, f"`{test}`", control(entry)


def protocols() -> Iterator[str]:
    for room, rows in groupby(sorted(map(row, entries().values())), key=lambda one: one[0]):
        yield f"## {room}\n"
        yield "| mechanism | model | epsilon is | neighbours | arithmetic | source | tests | wrong constant |"
        yield "|---|---|---|---|---|---|---|---|"
        for what, each in groupby(rows, key=lambda one: one[1]):
            listed = list(each)
            controls = dict.fromkeys(wrong for *_, wrong in listed)
            yield (
                "| "
                + " | ".join(
                    (*what, ", ".join(test for _, _, test, _ in listed), "; ".join(controls))
                )
                + " |"
            )
        yield ""


def names(node: ast.AST) -> set[str]:
    inner = list(ast.walk(node))
    called = {one.id for one in inner if isinstance(one, ast.Name)} | {
        one.arg for one in inner if isinstance(one, ast.arg)
    }
    return called | {one.attr for one in inner if isinstance(one, ast.Attribute)}


def reached(path: Path) -> dict[str, set[str]]:
    """The tests of a file that are named for a guarantee, and the names that each reaches within
    its file.
    """
    tree = ast.parse(path.read_text())
    held = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    held |= {
        name.id: node
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }  # type: ignore[misc]
    found = {}
    for test in [name for name in held if name.startswith("test_guarantee")]:
        seen: set[str] = set()
        todo = {test}
        while todo:
            one = todo.pop()
            seen.add(one)
            todo |= names(held[one]) - seen if one in held else set()
        found[f"{path.relative_to(ROOT)}::{test}"] = seen
    return found


def promises() -> Iterator[tuple[str, str]]:
    """Public names with a ``Guarantees:`` line, protocols left out: room and name."""
    from torchdp.protocol import Protocol

    for room in ROOMS:
        module = importlib.import_module(f"torchdp.{room}")
        for name in getattr(
            module,
            "__all__",
            [n for n, t in vars(module).items() if getattr(t, "__module__", "") == module.__name__],
        ):
            thing = getattr(module, name)
            if inspect.isclass(thing) and issubclass(thing, Protocol):
                continue
            inner = vars(thing).values() if inspect.isclass(thing) else ()
            said = [getattr(one, "__doc__", None) or "" for one in (thing, *inner)]
            if any("Guarantees:" in text and not OWN.search(text) for text in said):
                yield room, name


def others() -> Iterator[str]:
    found = {
        test: seen
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for test, seen in reached(path).items()
    }
    promised = list(promises())
    for room, name in promised:
        once = sum(name == other for _, other in promised) == 1
        own = [
            test
            for test, seen in found.items()
            if name in seen and test.startswith(f"tests/{room}")
        ]
        own = own or [test for test, seen in found.items() if name in seen and once]
        if not own:
            own = [
                "tests/"
                + ELSEWHERE.get(
                    f"{room}.{name}", f"?? no test_guarantee of {room} reaches {name}: ELSEWHERE"
                )
            ]
        yield f"| `{room}.{name}` | " + ", ".join(f"`{test}`" for test in own[:2]) + " |"


def page() -> str:
    return "\n".join([HEAD, *protocols(), OTHERS, *others()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
