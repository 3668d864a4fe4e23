"""Docstrings as pages: ``Guarantees:`` and ``Source:`` in boxes, roles as links, mathematics in
ASCII left as it is.
"""

import re

import griffe

CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([\w.]+)`")
BOX = re.compile(r"(Guarantees|Source): (.*)")


def escaped(text: str) -> str:
    """The characters that Markdown would take for its own, outside code."""
    parts = CODE.split(text)
    plain = (
        re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;").replace(">", "&gt;")
        for part in parts
    )
    return "".join(parts[i] if i % 2 else part for i, part in enumerate(plain))


def link(name: str, obj: griffe.Object) -> str:
    """A private target stays plain text."""
    try:
        path = obj.resolve(name)
        member = obj.modules_collection[path]
        # a function in a file of its name
        if member.is_module and name.rsplit(".", 1)[-1] in member.members:
            path += "." + name.rsplit(".", 1)[-1]
    except (griffe.NameResolutionError, KeyError):
        path = name
    return f'<autoref optional identifier="{path}"><code>{name.rsplit(".", 1)[-1]}</code></autoref>'


def linked(text: str, obj: griffe.Object) -> str:
    pieces = ROLE.split(text)  # text, name, text, name, ...
    return "".join(link(piece, obj) if i % 2 else escaped(piece) for i, piece in enumerate(pieces))


def blocks(text: str) -> list[list[str]]:
    """Paragraphs; ``Guarantees:`` and ``Source:`` open one of their own."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or BOX.match(line):
            found.append([])
        if line.strip():
            found[-1].append(line)
    return [block for block in found if block]


def markdown(text: str, obj: griffe.Object) -> str:
    out = []
    for block in blocks(text):
        box = BOX.match(block[0])
        if box:
            lines = linked("\n".join((box[2], *block[1:])), obj).split("\n")
            out.append(
                "\n".join(
                    [f'!!! {box[1].lower()} "{box[1]}"', "", *("    " + line for line in lines)]
                )
            )
        elif block[0].lstrip().startswith(">>>"):
            out.append(
                "\n".join(
                    ["```pycon", *(line.strip("\n").removeprefix("    ") for line in block), "```"]
                )
            )
        elif block[0].startswith("    "):
            out.append("\n".join(block))  # code
        else:
            out.append(linked("\n".join(block), obj))
    return "\n\n".join(out) + "\n"


def arguments(text: str, obj: griffe.Object) -> str:
    """``Args:`` keeps its layout, which griffe reads: ``name: text`` a line, indented by four."""
    pieces = re.split(r"(^ {4}\w+: )", text, flags=re.MULTILINE)
    return "".join(piece if i % 2 else linked(piece, obj) for i, piece in enumerate(pieces))


def page(text: str, obj: griffe.Object) -> str:
    head, args, tail = text.partition("\nArgs:\n")
    if not args:
        return markdown(text, obj)
    listed, after, rest = [*re.split(r"(\n\n)(?=\S)", tail, maxsplit=1), "", ""][:3]
    return markdown(head, obj) + args + arguments(listed, obj) + after + markdown(rest, obj)


class Torchdp(griffe.Extension):
    def __init__(self) -> None:
        self.made: set[str] = set()  # inherited docstrings are copies of what was made already

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None and obj.docstring.value not in self.made:
            obj.docstring.value = page(obj.docstring.value, obj)
            self.made.add(obj.docstring.value)
