"""The tests' power: faults planted one at a time in a copy of the repository, and the first test
that sees each.

Each fault is a statement that privacy hangs on, as a mistaken author would have written it: a
factor of 2, a sign, a missing clip, noise used twice, a part of a composition forgotten, a float
table in place of integers. They stand in ``mutations.txt``, by function and compared as syntax
trees, each beside the few test files that should see it; the unmutated copy must pass these first.

Command:  python experiments/bench/mutations.py | tee experiments/bench/mutations_cpu.txt
Expected: every fault is seen.
Output: results/bench/mutations/mutations.csv (what is in it is not measured again); printed:
``mutations_cpu.txt``.
Artifact: - | what the tests are worth
Status: agrees
Time: half an hour on two busy cores, a third of it for the tests without any fault; --smoke plants
two.
    On the CPU, whatever --device says.
"""

import ast
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torchdp.simulate import Experiment
from torchdp.simulate.report import read_table

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_suffix(".txt")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "results")
SECONDS = 300  # for the tests of one fault: code that does not end is seen too


@dataclass(frozen=True)
class Config:
    match: str = ""  # a pattern of "file: what" that chooses; all where it is empty
    at_once: int = 2
    sound: bool = True  # the tests are run without any fault first


FULL = Config()
SMOKE = Config(match=r"randomized_response\.py: (off by one type|half of epsilon)")


parsed = lru_cache(maxsize=4)(ast.parse)  # faults of one file stand together


def definitions(node: ast.AST, inside=""):
    """Every class and function below the node, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inside + child.name, child
            yield from definitions(child, f"{inside}{child.name}.")
        else:
            yield from definitions(child, inside)


@lru_cache(maxsize=4)
def named_in(tree: ast.AST) -> list[tuple[str, ast.AST]]:
    return list(definitions(tree))


def expressions(scope: ast.AST, pattern: ast.expr):
    """Every expression that reads as the pattern, as a run of one."""
    as_text = ast.unparse(pattern)
    alike = [node for node in ast.walk(scope) if isinstance(node, type(pattern))]
    return [(node, node) for node in alike if ast.unparse(node) == as_text]


def statements(scope: ast.AST, pattern):
    """The first and last statement of every run that reads as the pattern."""
    as_text = ast.unparse(pattern)
    found = []
    for node in ast.walk(scope):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list):
                continue
            for first in range(len(body) - len(pattern) + 1):
                run = body[first : first + len(pattern)]
                if [*map(type, run)] == [*map(type, pattern)] and ast.unparse(run) == as_text:
                    found.append((run[0], run[-1]))
    return found


@dataclass(frozen=True)
class Fault:
    """``right`` and ``wrong`` are compared as syntax trees: neither comments nor the form of the
    lines count.
    """

    file: str
    function: str  # qualified; "": the module
    what: str
    tests: tuple[str, ...]  # below tests/
    right: str
    wrong: str

    @property
    def room(self):
        return self.file.split("/")[1].removesuffix(".py")

    @property
    def short(self):
        return self.file.partition("/")[2]

    def code(self, root):
        """The file with the fault. Raises LookupError where function or statement is not there
        once, ValueError where the fault changes nothing.
        """
        text = (root / self.file).read_text()
        tree = parsed(text)
        named = f"{self.file}::{self.function} ({self.what})"
        scopes = [tree]
        if self.function:
            scopes = [node for name, node in named_in(tree) if name == self.function]
        if not scopes:
            raise LookupError(f"{named}: no such function")
        right = ast.parse(self.right).body
        wrong = ast.parse(self.wrong).body
        if ast.unparse(right) == ast.unparse(wrong):
            raise ValueError(f"{named} changes nothing")
        found: list[tuple[ast.expr, ast.expr]] | list[tuple[ast.stmt, ast.stmt]]
        if (
            len(right) == len(wrong) == 1
            and isinstance(right[0], ast.Expr)
            and isinstance(wrong[0], ast.Expr)
        ):
            found = [place for scope in scopes for place in expressions(scope, right[0].value)]
            new = f"({ast.unparse(wrong)})"
        else:
            found = [place for scope in scopes for place in statements(scope, right)]
            new = ast.unparse(wrong)
        if len(found) != 1:
            raise LookupError(f"{named} holds {self.right!r} {len(found)} times, not once")
        first, last = found[0]
        new = new.replace("\n", "\n" + " " * first.col_offset)
        lines = text.encode().splitlines(keepends=True)
        before = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
        after = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(
            lines[last.end_lineno :]
        )
        return before.decode() + new + after.decode()


def read(text):
    """The faults of a text such as ``mutations.txt``. Raises ValueError for a paragraph that is
    none.
    """
    found = []
    for paragraph in re.split(r"\n{2,}", re.sub(r"(?m)^#.*\n", "", text).strip("\n")):
        head, *lines = paragraph.split("\n")
        named = re.fullmatch(r"@ ([^\s:]+)(?:::([\w.]+))?: (.+) \| (.+)", head)
        right = "\n".join(line[2:] for line in lines if line.startswith("- "))
        wrong = "\n".join(line[2:] for line in lines if line.startswith("+ "))
        if named is None or not right or any(line[:2] not in ("- ", "+ ") for line in lines):
            raise ValueError(f"a fault must have a file, a name, tests and a text: {head!r}")
        found.append(
            Fault(named[1], named[2] or "", named[3], tuple(named[4].split()), right, wrong)
        )
    return found


@contextmanager
def planted(fault, copy) -> Iterator[None]:
    path = copy / fault.file
    sound = path.read_bytes()
    at = path.stat()
    changed = fault.code(copy)
    ast.parse(changed)
    path.write_text(changed)
    try:
        yield
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


class Copy:
    """A copy of the repository, and the process whose children run tests over it."""

    def __init__(self, folder):
        self.root = folder / "copy"
        self.printed = folder / "printed"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=LEFT_OUT)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)  # else the sound tree would be imported
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("preloaded.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )

    def failed(self, tests: tuple[str, ...], seconds=1800.0):
        """The first test that fails over the copy, "" where none does. Raises RuntimeError where no
        test ran.
        """
        options = "-q -x --tb=no -rfE -p no:cacheprovider -m".split()
        paths = [f"tests/{name}" for name in tests]
        arguments = [*options, "not slow and not gpu", *paths]
        assert self.process.stdin and self.process.stdout
        line = json.dumps([str(self.root), str(self.printed), seconds, arguments])
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        if code == -1:
            return f"no end in {seconds:g} s"
        printed = self.printed.read_text(errors="replace")
        seen = re.search(r"(?m)^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", printed)
        if code == 4 and "found no collectors" in printed and " error" in printed:
            return f"{tests[0]} (does not load)"
        passed = code == 0
        # else failed, or a module that does not load
        if code not in (0, 1, 2) or (seen is None) != passed:
            raise RuntimeError(f"{' '.join(tests)}: exit {code}, {printed[-3000:]}")
        return seen[1].partition("[")[0] if seen else ""

    def close(self):
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(config, report):
    faults = [
        each
        for each in read(FAULTS.read_text())
        if re.search(config.match, f"{each.file}: {each.what}")
    ]
    path = report.folder / "mutations.csv"
    known = {(row["file"], row["fault"]) for row in read_table(path)} if path.exists() else set()
    left = [fault for fault in faults if (fault.short, fault.what) not in known]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        copies = queue.SimpleQueue()
        for number in range(config.at_once):
            copies.put(stack.enter_context(closing(Copy(Path(folder, str(number))))))
        pool = stack.enter_context(ThreadPoolExecutor(config.at_once))

        def seen(tests: tuple[str, ...], fault: Fault | None = None):
            copy = copies.get()
            start = time.perf_counter()
            try:
                with planted(fault, copy.root) if fault else nullcontext():
                    by = copy.failed(tests, SECONDS) if fault else copy.failed(tests)
            finally:
                copies.put(copy)
            return {"killed_by": by or "nobody", "seconds": round(time.perf_counter() - start, 1)}

        tests = sorted({name for fault in left for name in fault.tests})
        sound = pool.map(lambda name: seen((name,))["killed_by"], tests if config.sound else ())
        broken = [name for name in sound if name != "nobody"]
        if broken:
            raise RuntimeError(f"these tests fail without any fault: {' '.join(map(str, broken))}")
        found = {fault: pool.submit(seen, fault.tests, fault) for fault in left}
        killed = Counter()
        for fault in faults:
            key = {"room": fault.room, "file": fault.short, "fault": fault.what}
            row = report.once("mutations", key, lambda fault=fault: found[fault].result())
            killed[fault.room] += row["killed_by"] != "nobody"
    for room, count in Counter(fault.room for fault in faults).items():
        report.row("rooms", room=room, faults=count, killed=killed[room])
    report.say(
        f"\n{killed.total()} of {len(faults)} faults were seen: {100 * killed.total() / len(faults):.1f} %"
    )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
