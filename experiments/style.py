"""How dense Python source is: figures of each package, and the statements that are hardest to read.

    python experiments/style.py                    torchdp, kernels, experiments and tests
    python experiments/style.py torchdp/shuffle    each file of a package, and its worst statements

Aims to look at in review, not gates, for each of them can be met without the code being easier to
read: at most 9.5 tokens a line of code (12 in mathematics), comments in 3 % of the lines, fewer
than 6 % of the statements nested nine levels deep, fewer than 1 % packed (several values assigned
at once, walruses), fewer than 1 % of the lines beyond 100 characters. Docstrings, comments and
layout are no tokens.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("torchdp", "kernels", "experiments", "tests")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WIDTH = 100
DEEP = 9
WORST = 10
HEADER = f"{'':40} files  tokens  a line  comments   deep  packed  long"


@dataclass
class Statement:
    """A simple statement: what stands inside of others is not counted by itself."""

    place: str
    text: str
    nodes: int
    depth: int
    packed: bool


@dataclass
class Source:
    """A file: lines of text, lines with code, tokens, and its statements."""

    lines: list[str]
    code_lines: int
    comments: int
    tokens: int
    statements: list[Statement]


def depth(node: ast.AST) -> int:
    """Levels of nodes, with this one."""
    return 1 + max(map(depth, ast.iter_child_nodes(node)), default=0)


def is_packed(node: ast.AST) -> bool:
    """Several values assigned at once, by a tuple or a generator, or a walrus."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr):
            return True
        if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Tuple):
            if isinstance(inner.value, ast.Tuple | ast.GeneratorExp):
                return True
    return False


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def measure(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    strings: set[int] = set()
    statements = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        if is_docstring(node):
            strings.update(range(node.lineno, node.end_lineno + 1))
        elif not hasattr(node, "body"):
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            nodes = sum(1 for _ in ast.walk(node))
            shown = ast.unparse(node)
            statements.append(Statement(place, shown, nodes, depth(node), is_packed(node)))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    code = [each for each in tokens if each.type not in LAYOUT and each.start[0] not in strings]
    covered: set[int] = set()
    for each in code:
        covered.update(range(each.start[0], each.end[0] + 1))
    comments = sum(each.type == tokenize.COMMENT for each in tokens)
    return Source(text.splitlines(), len(covered), comments, len(code), statements)


def row(name: str, sources: list[Source]) -> str:
    lines = [line for source in sources for line in source.lines]
    statements = [each for source in sources for each in source.statements]
    tokens = sum(source.tokens for source in sources)
    a_line = tokens / max(1, sum(source.code_lines for source in sources))
    comments = sum(source.comments for source in sources) / max(1, len(lines))
    deep = sum(each.depth >= DEEP for each in statements) / max(1, len(statements))
    packed = sum(each.packed for each in statements) / max(1, len(statements))
    long = sum(len(line) > WIDTH for line in lines) / max(1, len(lines))
    return (
        f"{name:40} {len(sources):5} {tokens:7} {a_line:7.2f} {comments:9.1%} {deep:6.1%}"
        f" {packed:7.1%} {long:5.1%}"
    )


def packages(places: list[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Each place as a whole, and what is directly below it: its folders and files."""
    for place in places:
        files = sorted(place.rglob("*.py"))
        yield str(place.relative_to(ROOT)), files
        for inner in sorted({path.relative_to(place).parts[0] for path in files}):
            below = [path for path in files if path.relative_to(place).parts[0] == inner]
            yield f"  {inner}", below


def main() -> None:
    places = [Path(word).resolve() for word in sys.argv[1:]] or [ROOT / top for top in TOPS]
    print(HEADER)
    statements: list[Statement] = []
    for name, files in packages(places):
        sources = [measure(path) for path in files]
        print(row(name, sources))
        if not name.startswith(" "):
            statements += [each for source in sources for each in source.statements]
    statements.sort(key=lambda each: each.nodes * each.depth, reverse=True)
    print(f"\nthe {WORST} worst statements (nodes times depth)")
    for each in statements[:WORST]:
        print(f"{each.place}, depth {each.depth}\n    {each.text}")


if __name__ == "__main__":
    main()
