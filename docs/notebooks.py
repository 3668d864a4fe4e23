"""The notebooks of docs/notebooks: executed, their outputs stored, and shown on the site as they
are stored.

Command: python docs/notebooks.py [survey densities training sweep], in minutes; prints the seconds
of each. For mkdocs (hooks in mkdocs.yml) every notebook is a page, notebooks/NAME.md, made of what
is stored in it; and mathematics on any page is MathML.
"""

import base64
import json
import re
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"
SECONDS = 300  # of one cell


def notebooks():
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path):
    """The notebook with its outputs, run in an empty folder; nothing in it says when or how
    long.
    """
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":  # warnings name this machine's folders
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    book.metadata.pop("widgets", None)
    book.metadata["language_info"] = {"name": "python"}
    return book


def shown(output, name, images):
    """One output as Markdown; a picture goes into ``images`` under its file's name."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        file = f"{name}_{len(images)}.png"
        images[file] = base64.b64decode(data["image/png"])
        return f"![Figure {len(images)} of this notebook]({file})"
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.S)
        return f'<div class="output">{" ".join(table.split())}</div>'
    return f"```text\n{data['text/plain'].rstrip()}\n```"


def page(path):
    """(Markdown, pictures by file name) of a notebook as it is stored."""
    parts, images = [], {}
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown(output, path.stem, images) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n", images


def on_files(files, config):
    """mkdocs: a page and its pictures for each notebook."""
    from mkdocs.structure.files import File

    for path in notebooks():
        text, images = page(path)
        for name, content in {f"{path.stem}.md": text, **images}.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """mkdocs: blocks of mathematics become MathML, which browsers draw by themselves."""
    from latex2mathml.converter import convert

    return re.sub(
        r"^```math\n(.*?)\n```$",
        lambda found: convert(found[1], display="block"),
        markdown,
        flags=re.S | re.M,
    )


if __name__ == "__main__":
    import nbformat

    for path in notebooks():
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            start = time.perf_counter()
            nbformat.write(execute(path), path)
            print(
                f"{path.stem}: {time.perf_counter() - start:.0f} s, {path.stat().st_size // 1024} KiB"
            )
