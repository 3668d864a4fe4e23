"""What first_day.py has found as one page with a figure, and as a table of text."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]
COLOURS = {"ok": "#4878a8", "no time left": "#bbbbbb"}  # what is neither is wrong
WRONG, MARK = "#c44e52", "#333333"
STYLE = """body{font:15px sans-serif;max-width:72em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}
td,th{padding:.15em .7em;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right}
.bad{color:#c44e52}pre{background:#f6f6f6;padding:.5em;overflow:auto}svg{max-width:100%;height:auto}"""


def write(found: Mapping[str, Found], folder: Path, rehearsed: bool) -> list[Path]:
    """The files: first_day.html, first_day.txt."""
    page, text = folder / "first_day.html", folder / "first_day.txt"
    text.write_text("\n".join([*table(found, rehearsed), ""]))
    title = "The first day, rehearsed on a CPU: no figure of a GPU" if rehearsed else "The first day on a GPU"
    parts = [f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"]
    parts += [picture(found, rehearsed), "<h2>Steps</h2>", steps(found)]
    for name, each in found.items():
        if each["rows"] or each["status"] != "ok":
            parts += [f"<h2>{html.escape(name)}</h2>", rows(each["rows"])]
        if each["status"] not in ("ok", "no time left"):
            parts.append(f"<pre>{html.escape(each.get('said', ''))}</pre>")
    page.write_text("\n".join(parts))
    return [page, text]


def table(found: Mapping[str, Found], rehearsed: bool) -> list[str]:
    """Seconds by step, as text."""
    lines = [("step", "status", "seconds", "planned", "rows")]
    for name, each in found.items():
        lines.append(
            (name, each["status"], f"{each['seconds']:.1f}", f"{each['planned']:.0f}", str(len(each["rows"])))
        )
    lines.append(("all", "", f"{sum(each['seconds'] for each in found.values()):.1f}", "", ""))
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head = "python experiments/bench/first_day.py --out FOLDER" + " --rehearse" * rehearsed
    said = "small sizes on the CPU; on a GPU not yet measured" if rehearsed else "on a GPU"
    shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)).rstrip() for line in lines]
    return [f"# {head}: {said}", *shown]


def steps(found: Mapping[str, Found]) -> str:
    lines = ["<table><tr><th>step<th>status<th>seconds<th>planned"]
    for name, each in found.items():
        bad = "" if each["status"] == "ok" else " class=bad"
        lines.append(
            f"<tr><td>{html.escape(name)}<td{bad}>{html.escape(each['status'])}"
            f"<td class=n>{each['seconds']:.1f}<td class=n>{each['planned']:.0f}"
        )
    return "\n".join([*lines, "</table>"])


def rows(each: Sequence[Found]) -> str:
    """A table for rows of the same names."""
    lines, names = [], ()
    for row in each:
        if tuple(row) != names:
            lines += ["</table>"] * bool(names) + ["<table><tr>" + "".join(f"<th>{html.escape(n)}" for n in row)]
            names = tuple(row)
        lines.append("<tr>" + "".join(map(cell, row.values())))
    return "\n".join([*lines, "</table>"] if lines else [])


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td class=n>{value:.4g}"
    bad = " class=bad" if value is False else ""
    return f"<td{bad}>{html.escape('' if value is None else str(value))}"


def picture(found: Mapping[str, Found], rehearsed: bool) -> str:
    """Seconds by step; of a GPU also each launch's share of its bound, and how many times as fast as a CPU it is."""
    from matplotlib.figure import Figure

    launches = [row for row in found.get("time over the bound", {"rows": ()})["rows"] if "of the bound" in row]
    benches = [row for each in found.values() for row in each["rows"] if row.get("times as fast")]
    panels = 1 if rehearsed else 1 + bool(launches) + bool(benches)
    longest = max(len(found), 0 if rehearsed else len(launches), 0 if rehearsed else len(benches))
    figure = Figure(figsize=(7 * panels, 1.2 + 0.22 * longest), layout="constrained")
    axes = iter(figure.subplots(1, panels, squeeze=False)[0])
    first = next(axes)
    colours = [COLOURS.get(each["status"], WRONG) for each in found.values()]
    bars(first, list(found), [each["seconds"] for each in found.values()], colours)
    first.set_xlabel("seconds (blue: well; red: not; mark: planned)")
    for place, each in enumerate(found.values()):
        first.plot([each["planned"]] * 2, [place - 0.4, place + 0.4], color=MARK, linewidth=1)
    if launches and not rehearsed:
        bars(axis := next(axes), [row["launch"] for row in launches], [row["of the bound"] for row in launches])
        axis.set_xlabel("bound of machine code and bytes, over the time taken")
    if benches and not rehearsed:
        bars(axis := next(axes), [row["case"] for row in benches], [row["times as fast"] for row in benches])
        axis.set_xscale("log")
        axis.axvline(1, color=MARK, linewidth=1)
        axis.set_xlabel("times as fast as one thread of the CPU in tables/")
    held = io.StringIO()
    figure.savefig(held, format="svg")
    return held.getvalue()[held.getvalue().index("<svg") :]


def bars(axis: Any, names: Sequence[str], sizes: Sequence[float], colours: Any = COLOURS["ok"]) -> None:
    axis.barh(range(len(names)), sizes, color=colours)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/first_day.py --help")
