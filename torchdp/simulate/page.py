"""One page that a person reads: of a store, self-contained HTML and Markdown, from the store
alone.
"""

import hashlib
import html
import io
import json
import math
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdp import checks
from torchdp.simulate.blocks import Asked
from torchdp.simulate.config_runs import ConfigRun, Row
from torchdp.simulate.moments import Moments
from torchdp.simulate.plots import error_curves, keys_of, measured, others, ratio_strip, word
from torchdp.simulate.store import Reader, Start, load
from torchdp.simulate.streams import canonical
from torchdp.text import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# lines of one figure, if the configurations have them
COMPARED = ("mechanism", "protocol", "method")
MOST = 12  # figures of one kind
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;font-size:14px;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;
text-align:right;font-variant-numeric:tabular-nums}td.word,th.word{text-align:left}svg{max-width:100%;height:auto}
footer{font-size:13px;color:#555;border-top:1px solid #ddd;margin-top:2em}.bad{color:#a00}"""


class Page:
    """Paragraphs, tables and figures, written as HTML with everything inside and as Markdown
    without the figures.

    All text is escaped here, for both, and nowhere else.
    """

    def __init__(self, title: str) -> None:
        self._html: list[str] = []
        self._text: list[str] = []
        self.title = title
        self._add(f"<h1>{_safe(title)}</h1>", f"# {_marked(title)}")

    def _add(self, as_html: str, as_markdown: str) -> None:
        self._html.append(as_html)
        self._text.append(as_markdown)

    def heading(self, text: str) -> None:
        self._add(f"<h2>{_safe(text)}</h2>", f"## {_marked(text)}")

    def say(self, text: str, bad: bool = False) -> None:
        self._add(f"<p{' class=bad' * bad}>{_safe(text)}</p>", _marked(text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        words = [all(isinstance(row[at], str) for row in rows) for at in range(len(columns))]
        kinds = [' class="word"' if each else "" for each in words]
        cells = [[_cell(cell) for cell in row] for row in rows]

        def line(tag: str, row: Sequence[str]) -> str:
            pairs = zip(kinds, row, strict=True)
            made = "".join(f"<{tag}{kind}>{_safe(cell)}</{tag}>" for kind, cell in pairs)
            return f"<tr>{made}</tr>"

        body = "".join(line("td", row) for row in cells)
        rule = ["---" if each else "---:" for each in words]
        lines = [map(_marked, columns), rule, *(map(_marked, row) for row in cells)]
        self._add(
            f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>",
            "\n".join("| " + " | ".join(each) + " |" for each in lines),
        )

    def figure(self, figure: "Figure", caption: str) -> None:
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        picture = drawn.getvalue()[drawn.getvalue().index("<svg") :]
        self._add(
            f"<figure>{picture}<figcaption>{_safe(caption)}</figcaption></figure>",
            f"(In the HTML page: a figure. {_marked(caption)})",
        )

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """``path`` and its .md twin; returns both."""
        page, text = Path(path), Path(path).with_suffix(".md")
        if page == text:
            raise ValueError(
                f"{page} is where the Markdown goes; name the HTML page, such as {page.stem}.html"
            )
        head = f'<meta charset="utf-8"><title>{_safe(self.title)}</title><style>{_STYLE}</style>'
        body = "".join(self._html)
        page.write_text(
            f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
        )
        text.write_text("\n\n".join(self._text) + "\n")
        return [page, text]


def write_page(
    store: str | os.PathLike[str], path: str | os.PathLike[str], title: str = ""
) -> list[Path]:
    """What ``store`` holds of its last sweep, at ``path`` (HTML) and beside it (Markdown); returns
    both.

    Error against each number of the configurations that varies, with 95 % intervals, predicted
    lines and slopes; measured over predicted; the table; failures; how it was made. Without
    matplotlib the page says so in place of figures. Raises OSError, ValueError where the store says
    nothing.
    """
    checks.path("path", path), checks.instance("title", title, str)
    reader = load(store)
    starts = list(reader.starts.values())
    if not starts:
        raise ValueError(
            f"{os.fspath(store)} does not say which sweep it is of; run torchdp sweep on it"
        )
    last = max(starts, key=lambda start: start.facts["at"])
    states = _states(reader, last)
    page = Page(title or f"Sweep {Path(store).parent.name or Path(store).name}")
    _summary(page, states)
    if find_spec("matplotlib") is None:
        lacking = "no figures: these need matplotlib (pip install matplotlib); then run torchdp report again"
        page.say(f"There are {lacking}.")
        warnings.warn(lacking, RuntimeWarning, stacklevel=2)
    else:
        _figures(page, [row for row, _ in states if row.moments.count > 1])
    _table(page, states)
    _made(page, last, starts)
    return page.write(path)


def _states(reader: Reader, last: Start) -> list[tuple[Row, str]]:
    """Each configuration of the sweep that started last, "done", "failed" in it, or "open"."""
    asked = Asked(*(last.facts[name] for name in ("trials", "seed", "block_size", "target")))
    digest = last.facts["grid_digest"]
    found = []
    starts = reader.starts.values()
    same = [start.facts for start in starts if start.facts.get("grid_digest") == digest]
    for config in next((facts["grid"] for facts in same if "grid" in facts), []):
        run = ConfigRun.known(config, asked, last.facts["code"], reader.runs)
        errors = [
            each.error
            for each in reader.failures
            if (each.key, each.start) == (list(run.key), last.start)
        ]
        row = run.row()
        if run.blocks.finished:
            found.append((row, "done"))
        elif errors:
            found.append((replace(row, error=errors[-1]), "failed"))
        else:
            found.append((row, "open"))
    return found


def digest_of(rows: Sequence[Row]) -> str:
    """Sixteen letters that tell results apart: SHA-256 of each row's configuration, seed, block
    size and metrics.

    Rows in any order give the same; wall time, devices, hosts and code do not enter.
    """
    lines = sorted(
        json.dumps([row.config, row.seed, row.block_size, _plain(row.metrics)], sort_keys=True)
        for row in checks.each_of("rows", rows, Row)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(metrics: Mapping[str, Moments]) -> list[list[float | str]]:
    return [
        [name, *(value if math.isfinite(value) else str(value) for value in astuple(each))]
        for name, each in metrics.items()
    ]


def _figures(page: Page, rows: Sequence[Row]) -> None:
    for names, part in _views(rows):
        page.figure(
            error_curves(part, **names),
            f"Root mean squared error against {word(names['x'])}. Bars: 95 % intervals.",
        )
        for number in others(part):
            if all(number in row.metrics and row.metrics[number].share for row in part):
                page.figure(
                    error_curves(part, **names, number=number),
                    f"{word(number)} against {word(names['x'])}. Bars: exact 95 % intervals.",
                )
    if any(row.facts.get("predicted_mse", 0) > 0 for row in rows):
        page.heading("Measured over predicted squared error")
        caption = "Each configuration of the table below, in its order. Bars: 95 % intervals."
        page.figure(ratio_strip(rows, ""), caption)


def _summary(page: Page, states: Sequence[tuple[Row, str]]) -> None:
    rows = [row for row, _ in states if row.moments.count]
    failed = [row for row, state in states if state == "failed"]
    done = [row for row, state in states if state == "done"]
    trials = sum(row.moments.count for row in rows)
    page.say(
        f"{len(done)} of {len(states)} configurations done, {len(failed)} failed; "
        f"{trials:,} trials in {_seconds(sum(row.seconds for row in rows))} of work. "
        f"Digest of the results: {digest_of(rows)}."
    )
    scores = [abs(z) for row in rows if not math.isnan(z := measured(row).get("z", math.nan))]
    if scores:
        expected = 1 + math.sqrt(2 * math.log(2 * len(scores)))
        page.say(
            f"Measured against predicted squared error: the largest of {len(scores)} z-scores is {max(scores):.2f}.",
            bad=max(scores) > expected + 1.5,
        )
    for row in failed:
        page.say(f"Failed: {canonical(row.config)}: {row.error}", bad=True)


def _views(rows: Sequence[Row]) -> list[tuple[dict[str, Any], list[Row]]]:
    """What to draw: each number that varies on x, words (or what varies most) as lines, one figure
    for the rest.
    """
    values = {
        key: {canonical({key: row.config.get(key)}) for row in rows}
        for key in keys_of(row.config for row in rows)
    }
    varying = [key for key in values if len(values[key]) > 1]
    numbers = [key for key in varying if all(_positive(row.config.get(key)) for row in rows)]
    found = []
    for x in numbers:
        others = [key for key in varying if key != x]
        names = [key for key in others if key not in numbers] or others
        lines = max(names, key=lambda key: (key in COMPARED, len(values[key])), default=None)
        rest = [key for key in others if key != lines]
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if row.moments.mean > 0:
                groups.setdefault(canonical({key: row.config.get(key) for key in rest}), []).append(
                    row
                )
        for part in list(groups.values())[:MOST]:
            fixed = ", ".join(f"{word(key)} {part[0].config.get(key)}" for key in rest)
            if len({row.config[x] for row in part}) > 1:
                found.append(({"x": x, "lines": lines, "title": fixed}, part))
    return found


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _table(page: Page, states: Sequence[tuple[Row, str]]) -> None:
    page.heading("All configurations")
    rows = [row for row, _ in states]
    keys = keys_of(row.config for row in rows)
    more = others(rows)
    columns = [
        *map(word, [*keys, "trials", "RMSE", "low", "high", "predicted", "ratio", "z", *more]),
        "state",
    ]
    page.table(columns, [[*_cells(row, keys, more), state] for row, state in states])
    page.say(
        "RMSE: root of the mean of the samples; low, high: its 95 % interval; ratio: of squared errors."
    )
    if more:
        page.say(
            "Other numbers: mean and 95 % interval, exact binomial where samples are true or false."
        )


def _cells(row: Row, keys: Sequence[str], more: Sequence[str]) -> list[object]:
    known = [row.config.get(key, "") for key in keys]
    found = {"mse_low": math.nan} | measured(row)
    found["mse_low"] = max(found["mse_low"], 0.0)
    squares = [
        found.get(name, math.nan) for name in ("mse", "mse_low", "mse_high", "predicted_mse")
    ]
    roots = [math.sqrt(value) if value >= 0 else math.nan for value in squares]
    beside = [found.get(name, math.nan) for name in ("ratio", "z")]
    for name in more:
        parts = [found.get(each, math.nan) for each in (name, f"{name}_low", f"{name}_high")]
        beside.append("{:.4g} ({:.4g} to {:.4g})".format(*parts) if name in found else "")
    plain = [value if isinstance(value, str | int | float) else str(value) for value in known]
    return [*plain, found["trials"], *roots, *beside]


def _made(page: Page, last: Start, starts: Sequence[Start]) -> None:
    page.heading("How it was made")
    asked = last.facts
    names = ("package", "torch", "python", "git", "cpu")
    target = (
        "" if asked["target"] is None else f", until the relative interval was {asked['target']:g}"
    )
    page.say(
        f"Seed {asked['seed']}, blocks of {asked['block_size']}{target}. Code: {asked['code']}."
    )
    columns = ["started", "host", "command", *names]
    rows = [[str(start.facts.get(name, "")) for name in columns] for start in starts]
    for start, row in zip(starts, rows, strict=True):
        row[0] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(start.facts["at"]))
    for name, *seen in zip(columns[3:], *(row[3:] for row in rows), strict=True):
        if len(set(seen)) > 1:
            values = ", ".join(map(repr, sorted(set(seen))))
            page.say(f"Its sweeps ran with several values of {name}: {values}.", bad=True)
    page.table(columns, rows)


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _safe(text: str) -> str:
    """As HTML, on one line."""
    return html.escape(shown(text))


def _marked(text: str) -> str:
    """As Markdown, on one line, none of it markup."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(shown(text), quote=False))
