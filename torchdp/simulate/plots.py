"""Figures and tables of a sweep, from its rows alone.

Squared errors are drawn as their roots, in the unit of what is estimated: RMSE = sqrt(mean), its
interval the roots of the mean's interval.
"""

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
# what a person calls the keys of configurations
WORDS = {
    "n": "users",
    "eps": "epsilon",
    "k": "types",
    "d": "dimensions",
    "dim": "dimensions",
    "p": "norm p",
}
# the columns of a table beside the configuration's, in their order
_MEASURED = "trials mse mse_low mse_high rmse predicted_mse ratio z seconds code error".split()


def subplots(
    count: int = 1, *, size: tuple[float, float] = (7, 4), wide: int = 2, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """A figure and ``count`` axes of this size in inches, ``wide`` beside each other.

    options: of ``Figure.subplots``. Raises ImportError where matplotlib is not installed.
    """
    with checks.needing("a figure", "matplotlib"):
        from matplotlib.figure import Figure
    count = checks.integer("count", count, 1, 10**4)
    wide = min(checks.integer("wide", wide, 1), count)
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(f"size must be (width, height) in inches, not {type(size).__name__}")
    width = checks.positive("size", size[0])
    height = checks.positive("size", size[1])
    high = math.ceil(count / wide)
    figure = Figure(figsize=(width * wide, height * high), layout="constrained")
    grid = figure.subplots(high, wide, squeeze=False, **options)
    axes = list(grid.flat)
    for place, panel in enumerate(axes):
        panel.set_prop_cycle(color=_COLOURS)
        # The last line of the grid may have places to spare.
        panel.set_visible(place < count)
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
    checks.instance("title", title, str)
    for name, value in (("lines", lines), ("panels", panels), ("number", number)):
        checks.instance(name, value, (str, type(None)))
    points = _points(rows, x, lines, panels, number)  # refuses before it draws
    figure, all_axes = subplots(points["panel"].nunique(), size=(7, 4.5))
    for axes, (panel, of_panel) in zip(all_axes, points.groupby("panel", sort=False), strict=True):
        for place, (line, of_line) in enumerate(of_panel.groupby("line", sort=False)):
            curve = of_line.sort_values("x")
            label = "measured" if lines is None else f"{word(lines)}={line}"
            if number is None and len(curve) > 1:
                # On log-log axes a power law is a straight line, whose slope is the exponent.
                slope = np.polyfit(np.log(curve["x"]), np.log(curve["middle"]), 1)[0]
                label += f", slope {slope:.2f}"
            bars = _bars(axes, curve, place, label=_verbatim(label))
            known = curve.dropna(subset="predicted")
            colour = bars.lines[0].get_color()
            axes.plot(known["x"], known["predicted"], "--", color=colour, alpha=0.7)
        dashed = "; dashed: predicted" if of_panel["predicted"].notna().any() else ""
        bars_are = f"bars: 95 % CI of the mean{dashed}"
        axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
        axes.legend(title=bars_are, fontsize="small", title_fontsize="small")
        heading = title if panels is None else str(panel)
        axes.set(xscale="log", xlabel=_verbatim(word(x)), title=_verbatim(heading))
        if number is None:
            axes.set(yscale="log", ylabel="RMSE")
        else:
            axes.set(ylabel=_verbatim(word(number)))
    if panels is not None:
        figure.suptitle(_verbatim(title))
    return figure


def ratio_strip(rows: Sequence[Row], title: str) -> "Figure":
    """Measured over predicted mean squared error of each row with a prediction, and 95 % intervals.

    Rows in order from left to right on a linear axis around 1: the picture most sensitive to a
    wrong formula. Raises ImportError where matplotlib is not installed, TypeError, ValueError where
    no row has a ``predicted_mse`` > 0.
    """
    rows = checks.each_of("rows", rows, Row)
    checks.instance("title", title, str)
    known = [row for row in rows if row.facts.get("predicted_mse", 0) > 0]
    if not known:
        raise ValueError("no row has a predicted_mse; there is nothing to compare")
    predicted = [row.facts["predicted_mse"] for row in known]
    # A prediction has no error of its own: the interval is divided as the mean is.
    points = _middle_and_ends([row.moments for row in known]).div(predicted, axis=0)
    points["x"] = range(len(known))
    figure, (axes,) = subplots(size=(8, 3))
    axes.axhline(1, color="black", linewidth=0.8)
    _bars(axes, points, 0, linestyle="none")
    axes.set(xlabel="configuration", ylabel="measured / predicted MSE", title=title)
    return figure


def _points(
    rows: Sequence[Row], x: str, lines: str | None, panels: str | None, number: str | None
) -> "pandas.DataFrame":
    """A point for each row: panel, line, x, middle, its interval's ends, what was predicted."""
    if not rows:
        raise ValueError("rows is empty; there is nothing to draw")
    for row in rows:
        missing = {x, lines or x} - set(row.config)
        if missing:
            raise ValueError(f"config {row.config} has no key {sorted(missing)}")
        if number is not None and number not in row.metrics:
            raise ValueError(f"number must be one of {list(row.metrics)}, not {number!r}")
        at = row.config[x]
        drawable = not isinstance(at, str | list | None) and at > 0
        if not drawable or not (number or row.moments.mean > 0):
            raise ValueError(
                f"log axes need {x} > 0 and an error > 0, not {x}={at!r}, mean {row.moments.mean!r}"
            )
    if number is None:
        points = _middle_and_ends([row.moments for row in rows])
        points["predicted"] = [row.facts.get("predicted_mse", math.nan) for row in rows]
        # The normal interval of a mean of squares may begin below 0.
        points = np.sqrt(points.clip(lower=0))
    else:
        points = _middle_and_ends([row.metrics[number] for row in rows])
        points["predicted"] = math.nan
    points["panel"] = [str(row.config.get(panels)) if panels else "" for row in rows]
    points["line"] = [str(row.config[lines]) if lines else "" for row in rows]
    points["x"] = [float(row.config[x]) for row in rows]
    # A line through both would look like a jump.
    for twice in points[points.duplicated(["panel", "line", "x"])].itertuples():
        raise ValueError(
            f"two rows at {x}={twice.x:g} on the line {lines}={twice.line}; select the rows first"
        )
    return points


def _middle_and_ends(moments: Sequence[Moments]) -> "pandas.DataFrame":
    import pandas

    ends = [(part.mean, *part.interval()) for part in moments]
    return pandas.DataFrame(ends, columns=["middle", "low", "high"])


def _bars(axes: "Axes", points: "pandas.DataFrame", place: int, **options: Any) -> Any:
    """Points with their intervals, from left to right; a line's marker tells it apart in grey."""
    ends = points[["low", "high"]].to_numpy().T  # (2, points)
    lengths = np.abs(ends - points["middle"].to_numpy())
    # Of one sample, whose interval is the whole line.
    lengths[~np.isfinite(lengths)] = 0.0
    return axes.errorbar(
        points["x"],
        points["middle"],
        yerr=lengths,
        color=_COLOURS[place % len(_COLOURS)],
        marker=_MARKERS[place % len(_MARKERS)],
        markersize=4,
        capsize=3,
        linewidth=1,
        **options,
    )


def write_csv(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """One line per row: its configuration, what was measured, the comparison with predictions.

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
    cells = [measured(row) for row in rows]
    keys = keys_of(row.config for row in rows)
    names = keys_of([_MEASURED, *cells])
    # What was measured would replace a configuration's value of the same name.
    clash = sorted(set(keys) & set(names))
    if clash:
        raise ValueError(f"config keys {clash} are names of measured columns; rename them")
    lines = [row.config | values for row, values in zip(rows, cells, strict=True)]
    write_table(path, [*keys, *names], lines)


def measured(row: Row) -> dict[str, Any]:
    """What a table says of a row beside its configuration: ``write_csv``'s columns that exist."""
    moments = row.moments
    cells: dict[str, Any] = {
        "trials": moments.count,
        "seconds": row.seconds,
        "code": row.code,
        "error": row.error or "",
    }
    if not moments.count:
        return cells
    cells["mse"] = moments.mean
    cells["mse_low"], cells["mse_high"] = moments.interval()
    # Samples need not be squares: a negative mean has no root.
    cells["rmse"] = math.sqrt(moments.mean) if moments.mean >= 0 else math.nan
    for name in others([row]):
        cells[name] = row.metrics[name].mean
        cells[f"{name}_low"], cells[f"{name}_high"] = row.metrics[name].interval()
    predicted = row.facts.get("predicted_mse")
    if predicted is not None:
        cells["predicted_mse"] = predicted
        cells["ratio"] = moments.mean / predicted if predicted else math.nan
        cells["z"] = moments.z_score(predicted)
    return cells


def others(rows: Sequence[Row]) -> list[str]:
    """Names of what is measured beside each row's first number."""
    # A row without samples does not know its numbers.
    return keys_of(list(row.metrics)[1:] for row in rows if row.moments.count)


def keys_of(names: Iterable[Iterable[str]]) -> list[str]:
    """All names, in order of first appearance."""
    return list(dict.fromkeys(chain.from_iterable(names)))


def _verbatim(text: str) -> str:
    return text.replace("$", r"\$")  # else a formula
