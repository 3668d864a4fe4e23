"""The rooms: who may import whom, what importing costs, and that the kernels are the checkout's
own.
"""

import ast
import functools
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from laws import executed

from torchdp.protocol import Protocol

ROOT = Path(__file__).resolve().parent.parent
FLOOR = set(
    "batch brief checks descent description discrete_laplace draws grid memory noise randomness root rounded simplex "
    "symmetric text threads".split()
)
MAY_IMPORT = dict.fromkeys(FLOOR, frozenset()) | {
    "batch": {"checks"},
    "checks": {"memory"},
    "discrete_laplace": {"draws", "kernels", "rounded"},
    "draws": {"checks"},
    "noise": {"checks", "draws", "kernels"},
    "rounded": {"checks", "draws", "kernels"},
    "grid": {"checks"},
    "privacy": FLOOR,
    "wire": {"checks", "threads"},
    "protocol": FLOOR | {"privacy", "wire"},
    "collection": FLOOR | {"privacy", "protocol"},
    "distributed": FLOOR | {"privacy", "protocol"},
    "workloads": FLOOR,
    "kernels": {"checks"},
    "simulate": FLOOR,
    "factorization": FLOOR | {"workloads"},
    "randomizers": FLOOR | {"privacy", "kernels", "wire", "protocol"},
    "queries": FLOOR
    | {"privacy", "protocol", "workloads", "factorization", "randomizers", "shuffle", "secure"},
    "pairwise": FLOOR
    | {
        "wire",
        "protocol",
        "collection",
        "privacy",
        "workloads",
        "factorization",
        "randomizers",
        "queries",
    },
    "shuffle": FLOOR | {"privacy", "kernels", "protocol", "wire"},
    "density": FLOOR | {"privacy", "kernels", "protocol", "randomizers", "shuffle", "secure"},
    "sketching": FLOOR | {"privacy", "kernels"},
    "secure": FLOOR | {"privacy", "protocol", "collection", "kernels", "sketching", "wire"},
    "regression": FLOOR | {"privacy", "protocol", "wire", "randomizers", "sketching", "secure"},
    "domains": FLOOR | {"factorization"},
    "mean": FLOOR | {"privacy", "protocol", "workloads", "factorization", "randomizers", "domains"},
    "training": FLOOR
    | {"kernels", "privacy", "protocol", "workloads", "factorization", "density", "sketching"},
    "session": FLOOR | {"privacy", "protocol", "queries"},
    "auditing": FLOOR | {"privacy", "protocol"},
    "sklearn": FLOOR | {"privacy", "protocol", "density", "randomizers", "regression"},
    "cli": FLOOR
    | {
        "kernels",
        "privacy",
        "workloads",
        "factorization",
        "randomizers",
        "queries",
        "domains",
        "mean",
    }
    | {
        "pairwise",
        "protocol",
        "shuffle",
        "collection",
        "simulate",
        "secure",
        "sketching",
        "regression",
    },
    "__main__": {"cli"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    found = {
        module_name(path): path
        for path in (ROOT / "torchdp").rglob("*.py")
        if "kernels" not in path.relative_to(ROOT).parts
    }
    for path in (ROOT / "kernels").rglob("*.py"):
        found["torchdp." + module_name(path)] = path
    return found


def imports(path: Path, known: set[str]) -> set[str]:
    """Modules of the package that a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.add(deeper if deeper in known else node.module)
    return {
        name
        for name in found
        if name.split(".")[0] in ("torchdp", "kernels", "experiments", "tests")
    }


@functools.cache
def arrows() -> dict[str, set[str]]:
    """What each module imports, but for torchdp itself, which names every package for type
    checkers.
    """
    known = modules()
    return {name: imports(path, set(known)) for name, path in known.items() if name != "torchdp"}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_every_room_has_a_rule():
    assert {room(name) for name in modules()} - {""} == set(MAY_IMPORT)


def test_no_upward_arrow():
    wrong = []
    for name, imported in arrows().items():
        for other in imported:
            inside = room(other) == room(name) or room(other) in MAY_IMPORT.get(room(name), set())
            if other.split(".")[0] != "torchdp" or not inside:
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_no_circle():
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in sorted(arrows().get(name, set()) - {name}):
                visit(other, (*above, name))
            done.add(name)

    for name in sorted(arrows()):
        visit(name, ())


def test_the_graph_tests_see_a_planted_arrow(tmp_path):
    path = tmp_path / "planted.py"
    path.write_text(
        "def f():\n    from torchdp import pairwise\n    import torchdp.simulate.blocks\n"
    )
    assert imports(path, set(modules())) == {"torchdp.pairwise", "torchdp.simulate.blocks"}


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_importing_torchdp_loads_nothing_heavy():
    heavy = fresh(
        "import sys, torchdp, torchdp.cli; torchdp.cli.parser();"
        "print([m for m in ('torch', 'numpy', 'scipy', 'pandas', 'cvxpy', 'triton', 'matplotlib') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_a_first_calibration_loads_no_algebra():
    """``torch.broadcast_shapes`` would: .3 s and 32 MiB, which the linter's ban prevents."""
    code = "import sys; from torchdp import privacy; privacy.gaussian_sigma([1.0], 1e-6); print('sympy' in sys.modules)"
    assert fresh(code).strip() == "False"


def test_rooms_load_on_first_use_and_with_searches_nothing_heavy():
    """The first optimizer of torch.optim would load torch's compiler: three seconds."""
    first = {path.parent.name for path in ROOT.glob("torchdp/*/__init__.py")} - {"cli"}
    first = sorted(first | {"kernels", "noise", "workloads"})
    rooms = sorted(set(MAY_IMPORT) - {"__main__", "sklearn"})
    code = f"""
import sys
import torch
before = set(sys.modules)
class Watch:
    def find_spec(self, name, path=None, target=None):
        slow = ("scipy.stats", "scipy.signal", "scipy.interpolate", "torch._dynamo", "torch._inductor")
        heavy = "cvxpy", "triton", "matplotlib", "sklearn", "dp_accounting", "pandas"
        if name.split(".")[0] in heavy or name in slow:
            print("tried to load", name)
sys.meta_path.insert(0, Watch())
import torchdp
print("importlib" in dir(torchdp))
for room in {first!r}:
    print(getattr(torchdp, room).__name__, dir(torchdp).count(room))
import importlib
for room in {rooms!r}:
    importlib.import_module("torchdp." + room)
importlib.import_module("torchdp.cli.estimate"), importlib.import_module("torchdp.cli.sweep")
from torchdp import factorization, protocol, randomizers
W = torch.eye(2).double()
factorization.train(W, steps=1)
found = randomizers.StrategyMatrix.tuned(W, 1.0, generator=torch.Generator(), steps=1)
found.improved(W, None, protocol.Objective.MEAN, 1)
print(sorted(m for m in set(sys.modules) - before if m.split(".")[0] in ("cvxpy", "triton")))
"""
    assert fresh(code).split("\n")[:-1] == ["False", *(f"torchdp.{room} 1" for room in first), "[]"]
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        importlib.import_module("torchdp").__getattr__("absent")


@pytest.mark.slow
def test_windows_lacks_simulate_alone(tmp_path):
    """docs/versions.md: what is of POSIX alone is taken away, once what belongs to others is
    loaded.
    """
    code = f"""
import importlib, os, sys
import torch, numpy, scipy.optimize, concurrent.futures.process, sqlite3, cryptography.hazmat.primitives.ciphers
POSIX = ("fcntl", "termios", "pwd", "grp", "resource")
for name in POSIX: sys.modules.pop(name, None)
for name in ("fork", "register_at_fork", "sysconf", "getuid", "uname", "sched_getaffinity"): vars(os).pop(name, None)
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX: raise ImportError(name)
sys.meta_path.insert(0, Absent())
for room in {sorted(set(MAY_IMPORT) - {"__main__", "sklearn"})!r}:
    try: importlib.import_module("torchdp." + room)
    except ImportError: print(room)
open({str(tmp_path / "u.csv")!r}, "w").write("height\\n" + "160\\n" * 300)
from torchdp import cli
ask = "estimate --csv {tmp_path}/u.csv --statistic mean --columns height --bounds height=140:210 --epsilon 2"
cli.main(ask.split())
"""
    lines = fresh(code).splitlines()
    assert lines[0] == "simulate"
    assert lines[1].startswith("mean of height")


def ancestors():
    """Each class of the library by its full name: torchdp's classes among its ancestors, itself
    first.
    """
    for room in set(MAY_IMPORT) - {"__main__"}:
        importlib.import_module(f"torchdp.{room}")
    loaded = [module for name, module in sys.modules.items() if name.startswith("torchdp.")]
    kinds = {each for module in loaded for each in vars(module).values() if isinstance(each, type)}
    return {
        f"{each.__module__}.{each.__qualname__}": [
            kind.__name__ for kind in each.__mro__ if kind.__module__.startswith("torchdp.")
        ]
        for each in kinds
        if each.__module__.startswith("torchdp.")
    }


def test_no_class_is_deep():
    """Whoever reads a class looks up what it has from its bases: six of the library's at most,
    itself included.
    """
    found = ancestors()
    assert {"PrivUnit", "BallRandomizer", "Protocol"} < set(
        found["torchdp.randomizers.ball.privunit.PrivUnit"]
    )
    assert not [names for names in found.values() if len(names) > 6]


def test_kernels_are_installed_as_torchdp_kernels():
    import torchdp.kernels.privunit as op

    assert Path(op.__file__).resolve().parent == ROOT / "kernels" / "privunit"
    # a top-level package called kernels is somebody else's
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_every_public_name_is_documented():
    missing = []
    for name in sorted(set(MAY_IMPORT) - {"cli", "__main__", "kernels"}):
        module = importlib.import_module(f"torchdp.{name}")
        for public in getattr(module, "__all__", []):
            thing = getattr(module, public)
            if (inspect.isroutine(thing) or inspect.isclass(thing)) and not (
                thing.__doc__ or ""
            ).strip():
                missing.append(f"torchdp.{name}.{public}")
    assert not missing


def test_the_page_of_mechanisms_is_up_to_date():
    """A protocol without an entry of the battery, or a promise without a test, has no row."""
    module = executed(ROOT / "docs/mechanisms.py")
    assert module.page() == module.PAGE.read_text(), (
        "python docs/mechanisms.py writes the page anew"
    )
    absent = {name for name in concrete(Protocol) if f"| `{name}`" not in module.PAGE.read_text()}
    assert not absent
    assert "??" not in module.PAGE.read_text()


def concrete(kind):
    for each in kind.__subclasses__():
        if not inspect.isabstract(each) and each.__module__.startswith("torchdp"):
            yield each.__name__
        yield from concrete(each)
