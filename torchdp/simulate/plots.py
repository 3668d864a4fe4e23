"""Figures and tables of a sweep, from its rows alone."""

import math
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdp import checks
from torchdp.simulate.config_runs import Row
from torchdp.simulate.moments import Moments
from torchdp.simulate.report import write_table

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, without the yellow, which vanishes on white
_COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #999999 #882255".split()
_MARKERS = "os^Dv"
WORDS = {
    "n": "users",
    "eps": "epsilon",
    "k": "types",
    "d": "dimensions",
    "dim": "dimensions",
    "p": "norm p",
}
_MEASURED = "trials mse mse_low mse_high rmse predicted_mse ratio z seconds code error".split()


def subplots(
    count: int = 1, *, size: tuple[float, float] = (7, 4), wide: int = 2, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """A figure and ``count`` axes of this size in inches, ``wide`` beside each other. options: of
    ``Figure.subplots``.

    Raises ImportError where matplotlib is not installed.
    """
    with checks.needing("a figure", "matplotlib"):
        from matplotlib.figure import Figure
    count = checks.integer("count", count, 1, 10**4)
    wide = min(checks.integer("wide", wide, 1), count)
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(f"size must be (width, height) in inches, not {type(size).__name__}")
    size = checks.positive("size", size[0]), checks.positive("size", size[1])
    high = -(-count // wide)
    figure = Figure(figsize=(size[0] * wide, size[1] * high), layout="constrained")
    axes = list(figure.subplots(high, wide, squeeze=False, **options).flat)
    for place, each in enumerate(axes):
        each.set_prop_cycle(color=_COLOURS)
        each.set_visible(place < count)
    return figure, axes[:count]


def word(name: str) -> str:
    """What a person calls a key of a configuration."""
    return WORDS.get(name, name.replace("_", " "))


def error_curves(
    rows: Sequence[Row],
    *,
    x: str,
    lines: str | None,
    title: str,
    panels: str | None = None,
    number: str | None = None,
) -> "Figure":
    """Root mean squared error against ``config[x]`` on log-log axes: a figure to show or to save.

    One line per distinct ``config[lines]``. Bars are the square roots of the 95 % interval of the
    mean squared error; the dashed line is the square root of ``facts["predicted_mse"]`` where there
    is one; the legend holds the least-squares slope of log RMSE on log x.

    Args:
        rows: their samples are squared errors.
        x: configuration key with numbers > 0.
        lines: configuration key whose values name the lines; None: one line.
        title: say the privacy unit and the model here.
        panels: configuration key whose values get a panel each (default: one panel).
        number: instead of the error the mean of the number of this name, such as a coverage, on a
            linear axis.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no rows, a key that a configuration lacks, x or error not positive, or two rows
            at one point of one line.
    """
    rows = checks.each_of("rows", rows, Row)
    checks.instance("x", x, str)
    checks.instance("lines", lines, (str, type(None)))
    checks.instance("title", title, str)
    checks.instance("number", number, (str, type(None)))
    points = _points(rows, x, lines, panels, number)  # refuses before it draws
    figure, all_axes = subplots(points["panel"].nunique(), size=(7, 4.5))
    for axes, (panel, of_panel) in zip(all_axes, points.groupby("panel", sort=False), strict=True):
        for place, (line, group) in enumerate(of_panel.groupby("line", sort=False)):
            group = group.sort_values("x")
            label = "measured" if lines is None else f"{word(lines)}={line}"
            if number is None and len(group) > 1:
                slope = np.polyfit(np.log(group["x"]), np.log(group["middle"]), 1)[0]
                label += f", slope {slope:.2f}"
            bars = _bars(axes, group, place, label=_verbatim(label))
            known = group.dropna(subset="predicted")
            colour = bars.lines[0].get_color()
            axes.plot(known["x"], known["predicted"], "--", color=colour, alpha=0.7)
        dashed = "; dashed: predicted" if of_panel["predicted"].notna().any() else ""
        axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
        axes.legend(
            title=f"bars: 95 % CI of the mean{dashed}", fontsize="small", title_fontsize="small"
        )
        axes.set(
            xscale="log",
            xlabel=_verbatim(word(x)),
            title=_verbatim(title if panels is None else str(panel)),
        )
        if number is None:
            axes.set(yscale="log", ylabel="RMSE")
        else:
            axes.set(ylabel=_verbatim(word(number)))
    if panels is not None:
        figure.suptitle(_verbatim(title))
    return figure


def ratio_strip(rows: Sequence[Row], title: str) -> "Figure":
    """Measured over predicted mean squared error of each row that has a prediction, with its 95 %
    interval.

    Rows in order from left to right on a linear axis around 1: the picture most sensitive to a
    wrong formula. Raises ImportError where matplotlib is not installed, TypeError, ValueError where
    no row has a ``predicted_mse`` > 0.
    """
    rows = checks.each_of("rows", rows, Row)
    checks.instance("title", title, str)
    known = [row for row in rows if row.facts.get("predicted_mse", 0) > 0]
    if not known:
        raise ValueError("no row has a predicted_mse; there is nothing to compare")
    points = _middle_and_ends([row.moments for row in known])
    points = points.div([row.facts["predicted_mse"] for row in known], axis=0)
    figure, (axes,) = subplots(size=(8, 3))
    axes.axhline(1, color="black", linewidth=0.8)
    _bars(axes, points.assign(x=range(len(known))), 0, linestyle="none")
    axes.set(xlabel="configuration", ylabel="measured / predicted MSE", title=title)
    return figure


def _points(
    rows: Sequence[Row], x: str, lines: str | None, panels: str | None, number: str | None
) -> "pandas.DataFrame":
    """A point for each row: panel, line, x, the middle with its interval's ends, and what was
    predicted.
    """
    panel = "" if panels is None else checks.instance("panels", panels, str)
    if not rows:
        raise ValueError("rows is empty; there is nothing to draw")
    for row in rows:
        missing = {x, lines or x} - set(row.config)
        if missing:
            raise ValueError(f"config {row.config} has no key {sorted(missing)}")
        if number is not None and number not in row.metrics:
            raise ValueError(f"number must be one of {list(row.metrics)}, not {number!r}")
        at = row.config[x]
        if isinstance(at, str | list | None) or not at > 0 or not (number or row.moments.mean > 0):
            raise ValueError(
                f"log axes need {x} > 0 and an error > 0, not {x}={at!r}, mean {row.moments.mean!r}"
            )
    points = _middle_and_ends([row.metrics[number] if number else row.moments for row in rows])
    predicted = math.nan
    if number is None:
        points["predicted"] = [row.facts.get("predicted_mse", math.nan) for row in rows]
        points = np.sqrt(points.clip(lower=0))
        predicted = points["predicted"]
    points = points.assign(
        panel=[str(row.config.get(panel)) for row in rows],
        line=[str(row.config[lines]) if lines else "" for row in rows],
        x=[float(row.config[x]) for row in rows],
        predicted=predicted,
    )
    for twice in points[points.duplicated(["panel", "line", "x"])].itertuples():
        raise ValueError(
            f"two rows at {x}={twice.x:g} on the line {lines}={twice.line}; select the rows first"
        )
    return points


def _middle_and_ends(moments: Sequence[Moments]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(
        [(each.mean, *each.interval()) for each in moments], columns=["middle", "low", "high"]
    )


def _bars(axes: "Axes", points: "pandas.DataFrame", place: int, **options: Any) -> Any:
    """Points with their intervals, from left to right; a line's marker tells it apart in grey."""
    ends = points[["low", "high"]].to_numpy().T  # (2, points)
    bars = np.abs(ends - points["middle"].to_numpy())
    return axes.errorbar(
        points["x"],
        points["middle"],
        yerr=np.where(np.isfinite(bars), bars, 0.0),
        color=_COLOURS[place % len(_COLOURS)],
        marker=_MARKERS[place % len(_MARKERS)],
        markersize=4,
        capsize=3,
        linewidth=1,
        **options,
    )


def write_csv(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """One line per row: its configuration, then what was measured and how it compares with the
    prediction.

    mse = mean of the samples with its 95 % interval mse_low, mse_high; rmse = sqrt(mse);
    ratio = mse / predicted_mse; z = (mse - predicted_mse) / standard error. Empty cells where there
    is no prediction. code: what made the row; error: why it ended early, empty where it did not.
    That is of the first number; of each other one its mean, by its name, with its interval, as
    coverage, coverage_low, coverage_high.

    Raises:
        ValueError: a configuration key has the name of a measured column.
        OSError: ``path`` cannot be written.
    """
    checks.path("path", path)
    rows = checks.each_of("rows", rows, Row)
    found = [measured(row) for row in rows]
    keys = keys_of(row.config for row in rows)
    named = keys_of([dict.fromkeys(_MEASURED), *found])
    clash = sorted(set(keys) & set(named))
    if clash:
        raise ValueError(f"config keys {clash} are names of measured columns; rename them")
    cells = (row.config | each for row, each in zip(rows, found, strict=True))
    write_table(path, [*keys, *named], cells)


def measured(row: Row) -> dict[str, Any]:
    """What a table says of a row beside its configuration: ``write_csv``'s columns, without what
    there is not.
    """
    moments = row.moments
    predicted = row.facts.get("predicted_mse")
    cells: dict[str, Any] = {"trials": moments.count, "seconds": row.seconds, "code": row.code}
    cells["error"] = row.error or ""
    if not moments.count:
        return cells
    low, high = moments.interval()
    rmse = math.sqrt(moments.mean) if moments.mean >= 0 else math.nan
    cells |= {"mse": moments.mean, "mse_low": low, "mse_high": high, "rmse": rmse}
    for name in others([row]):
        low, high = row.metrics[name].interval()
        cells |= {name: row.metrics[name].mean, f"{name}_low": low, f"{name}_high": high}
    if predicted is None:
        return cells
    ratio = moments.mean / predicted if predicted else math.nan
    return cells | {"predicted_mse": predicted, "ratio": ratio, "z": moments.z_score(predicted)}


def others(rows: Sequence[Row]) -> list[str]:
    """Names of what is measured beside each row's first number."""
    return keys_of(list(row.metrics)[1:] for row in rows if row.moments.count)


def keys_of(each: Iterable[Iterable[str]]) -> list[str]:
    """All names, in order of first appearance."""
    return list(dict.fromkeys(chain.from_iterable(each)))


def _verbatim(text: str) -> str:
    return text.replace("$", r"\$")  # else a formula
