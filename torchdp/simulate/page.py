"""One page that a person reads: self-contained HTML, from a store alone."""

import hashlib
import html
import io
import json
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdp import checks
from torchdp.simulate.blocks import Asked
from torchdp.simulate.config_runs import ConfigRun, Row
from torchdp.simulate.plots import error_curves, keys_of, measured, others, ratio_strip, word
from torchdp.simulate.store import Reader, Start, load
from torchdp.simulate.streams import canonical
from torchdp.text import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# lines of one figure, if the configurations have them
COMPARED = ("mechanism", "protocol", "method")
# Figures of one kind: a page with one for each value of many keys is not read.
MOST = 12
# z-scores of right formulas: the expected largest of many, and how far beyond it is suspicious
SUSPICIOUS = 1.5
NO_FIGURES = "no figures: these need matplotlib (pip install matplotlib)"
# Inside of the page, so that it can be sent alone.
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;font-size:14px;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;
text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}
.bad{color:#a00}"""


class Page:
    """Paragraphs, tables and figures as HTML, with everything inside: all text is escaped here."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts = [f"<h1>{_safe(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{_safe(text)}</h2>")

    def say(self, text: str, bad: bool = False) -> None:
        kind = " class=bad" if bad else ""
        self._parts.append(f"<p{kind}>{_safe(text)}</p>")

    def table(self, rows: Sequence[Mapping[str, object]]) -> None:
        import pandas

        frame = pandas.DataFrame(rows).rename(columns=shown)
        frame = frame.map(lambda cell: cell if isinstance(cell, int | float) else shown(cell))
        # pandas cuts texts of more than 50 letters.
        with pandas.option_context("display.max_colwidth", None):
            self._parts.append(
                frame.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
            )

    def figure(self, figure: "Figure", caption: str) -> None:
        file = io.StringIO()
        # No date in a figure: the page says when each sweep was started.
        figure.savefig(file, format="svg", metadata={"Date": None})
        drawn = file.getvalue()
        picture = drawn[drawn.index("<svg") :]  # without the head of an XML file
        self._parts.append(f"<figure>{picture}<figcaption>{_safe(caption)}</figcaption></figure>")

    def write(self, path: str | os.PathLike[str]) -> Path:
        page = Path(path)
        head = f'<meta charset="utf-8"><title>{_safe(self.title)}</title><style>{_STYLE}</style>'
        body = "".join(self._parts)
        page.write_text(
            f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
        )
        return page


class _State(NamedTuple):
    """A configuration's row, and whether it is "done", "failed" or "open"."""

    row: Row
    state: str


def write_page(
    store: str | os.PathLike[str], path: str | os.PathLike[str], title: str = ""
) -> Path:
    """``store``'s last sweep at ``path``, as HTML; returns it.

    Error against each number of the configurations that varies, with 95 % intervals, predicted
    lines and slopes; measured over predicted; the table; failures; how it was made. Without
    matplotlib the page says so in place of figures. Raises OSError, ValueError where the store says
    nothing.
    """
    checks.path("path", path)
    checks.instance("title", title, str)
    reader = load(store)
    starts = list(reader.starts.values())
    if not starts:
        raise ValueError(
            f"{os.fspath(store)} does not say which sweep it is of; run torchdp sweep on it"
        )
    # A store may hold sweeps of several grids.
    last = max(starts, key=lambda start: start.facts["at"])
    states = _states(reader, last)
    page = Page(title or f"Sweep {Path(store).parent.name or Path(store).name}")
    _summary(page, states)
    if find_spec("matplotlib") is None:
        lacking = f"{NO_FIGURES}; then run torchdp report again"
        page.say(f"There are {lacking}.")
        warnings.warn(lacking, RuntimeWarning, stacklevel=2)
    else:
        _figures(page, [row for row, _ in states if row.moments.count > 1])
    _table(page, states)
    _made(page, last, starts)
    return page.write(path)


def _states(reader: Reader, last: Start) -> list[_State]:
    """Each configuration of the sweep that started last."""
    facts = last.facts
    asked = Asked(facts["trials"], facts["seed"], facts["block_size"], facts["target"])
    grid: list[dict[str, Any]] = []
    for start in reader.starts.values():
        # The first sweep of a grid alone wrote its configurations down.
        if start.facts.get("grid_digest") == facts["grid_digest"] and "grid" in start.facts:
            grid = start.facts["grid"]
            break
    errors = {
        tuple(failure.key): failure.error
        for failure in reader.failures
        # What failed in an earlier sweep may have been mended since.
        if failure.start == last.start
    }
    states = []
    for config in grid:
        run = ConfigRun.known(config, asked, facts["code"], reader.runs)
        row = run.row()
        # First of the three: what failed here may have been finished by another sweep since.
        if run.blocks.finished:
            states.append(_State(row, "done"))
        elif run.key in errors:
            states.append(_State(replace(row, error=errors[run.key]), "failed"))
        else:
            states.append(_State(row, "open"))
    return states


def digest_of(rows: Sequence[Row]) -> str:
    """Sixteen letters that tell results apart.

    SHA-256 of each row's configuration, seed, block size and metrics. Rows in any order give the
    same; wall time, devices, hosts and code do not enter.
    """
    lines = []
    for row in checks.each_of("rows", rows, Row):
        metrics = []
        for name, moments in row.metrics.items():
            # JSON has no infinities and no NaN
            plain = [value if math.isfinite(value) else str(value) for value in astuple(moments)]
            metrics.append([name, *plain])
        lines.append(json.dumps([row.config, row.seed, row.block_size, metrics], sort_keys=True))
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _figures(page: Page, rows: Sequence[Row]) -> None:
    for view in _views(rows):
        draw = partial(error_curves, view.rows, x=view.x, lines=view.lines, title=view.title)
        against = f"against {word(view.x)}"
        page.figure(
            draw(),
            f"Root mean squared error {against}. Bars: 95 % intervals.",
        )
        for number in others(view.rows):
            if all(number in row.metrics and row.metrics[number].share for row in view.rows):
                page.figure(
                    draw(number=number),
                    f"{word(number)} {against}. Bars: exact 95 % intervals.",
                )
    if any(row.facts.get("predicted_mse", 0) > 0 for row in rows):
        page.heading("Measured over predicted squared error")
        caption = "Each configuration of the table below, in its order. Bars: 95 % intervals."
        page.figure(ratio_strip(rows, ""), caption)


def _summary(page: Page, states: Sequence[_State]) -> None:
    rows = [row for row, _ in states if row.moments.count]
    done = [row for row, state in states if state == "done"]
    failed = [row for row, state in states if state == "failed"]
    trials = sum(row.moments.count for row in rows)
    seconds = sum(row.seconds for row in rows)
    page.say(
        f"{len(done)} of {len(states)} configurations done, {len(failed)} failed; "
        f"{trials:,} trials in {seconds:,.0f} s of work. "
        f"Digest of the results: {digest_of(rows)}."
    )
    scores = [abs(measured(row).get("z", math.nan)) for row in rows]
    scores = [score for score in scores if not math.isnan(score)]
    if scores:
        # sqrt(2 ln 2m) bounds the expected largest of m normal |z|
        expected = 1 + math.sqrt(2 * math.log(2 * len(scores)))
        page.say(
            f"Measured against predicted squared error: the largest of {len(scores)} z-scores is "
            f"{max(scores):.2f}.",
            bad=max(scores) > expected + SUSPICIOUS,
        )
    for row in failed:
        page.say(f"Failed: {canonical(row.config)}: {row.error}", bad=True)


class _View(NamedTuple):
    """One figure: its axis, what its lines are, and what is fixed."""

    x: str
    lines: str | None
    title: str
    rows: list[Row]


def _views(rows: Sequence[Row]) -> list[_View]:
    """What to draw.

    Each number that varies on x, words (or what varies most) as lines, one figure for the rest.
    """
    values = {key: {_of(row, [key]) for row in rows} for key in keys_of(row.config for row in rows)}
    varying = [key for key in values if len(values[key]) > 1]
    # x is drawn on a log axis, which has no place for 0.
    numbers = [key for key in varying if all(_positive(row.config.get(key)) for row in rows)]
    views = []
    for x in numbers:
        rest = [key for key in varying if key != x]
        words = [key for key in rest if key not in numbers] or rest
        lines = max(words, key=lambda key: (key in COMPARED, len(values[key])), default=None)
        if lines is not None:
            rest.remove(lines)
        groups: dict[str, list[Row]] = {}
        for row in rows:
            # The axis of errors is a log axis too.
            if row.moments.mean > 0:
                groups.setdefault(_of(row, rest), []).append(row)
        for part in list(groups.values())[:MOST]:
            fixed = ", ".join(f"{word(key)} {part[0].config.get(key)}" for key in rest)
            # One point is no curve.
            if len({row.config[x] for row in part}) > 1:
                views.append(_View(x, lines, fixed, part))
    return views


def _of(row: Row, keys: Sequence[str]) -> str:
    """The values of these keys, told apart as a sweep does."""
    return canonical({key: row.config.get(key) for key in keys})


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _table(page: Page, states: Sequence[_State]) -> None:
    page.heading("All configurations")
    lines = []
    for row, state in states:
        values = measured(row)
        for name in ("seconds", "code", "error"):
            values.pop(name)
        named = {word(key): value for key, value in (row.config | values).items()}
        lines.append(named | {"state": state})
    page.table(lines)
    page.say(
        "low, high: ends of 95 % intervals, exact binomial where samples are true or false; rmse: "
        "root of the mean of the samples; ratio: of squared errors."
    )


def _made(page: Page, last: Start, starts: Sequence[Start]) -> None:
    page.heading("How it was made")
    facts = last.facts
    target = ""
    if facts["target"] is not None:
        target = f", until the relative interval was {facts['target']:g}"
    page.say(
        f"Seed {facts['seed']}, blocks of {facts['block_size']}{target}. Code: {facts['code']}."
    )
    rows = []
    for start in starts:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(start.facts["at"]))
        # Blocks of several machines or versions need not agree in the last bits.
        names = ["host", "command", "package", "torch", "python", "git", "cpu"]
        rows.append({"started": at} | {name: start.facts.get(name, "") for name in names})
    page.table(rows)


def _safe(text: str) -> str:
    """As HTML, on one line."""
    return html.escape(shown(text))
