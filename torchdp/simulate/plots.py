"""Figures and tables of a sweep, from its rows alone."""

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdp import checks
from torchdp.simulate.plans import Row
from torchdp.simulate.report import write_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, without the yellow, which vanishes on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "os^Dv"
_MEASURED = ("trials", "mse", "mse_low", "mse_high", "rmse", "predicted_mse", "ratio", "z", "seconds", "code",
             "error")  # fmt: skip


def subplots(
    count: int = 1, *, size: tuple[float, float] = (7, 4), wide: int = 2, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """A figure and ``count`` axes of this size in inches, ``wide`` beside each other. options: of ``Figure.subplots``.

    Raises ImportError where matplotlib is not installed.
    """
    with checks.needing("a figure", "matplotlib"):
        from matplotlib.figure import Figure
    count, wide = checks.integer("count", count, 1, 10**4), checks.integer("wide", wide, 1)
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(f"size must be (width, height) in inches, not {type(size).__name__}")
    size = checks.positive("size", size[0]), checks.positive("size", size[1])
    wide = min(wide, count)
    high = -(-count // wide)
    figure = Figure(figsize=(size[0] * wide, size[1] * high), layout="constrained")
    axes = list(figure.subplots(high, wide, squeeze=False, **options).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def error_curves(
    rows: Sequence[Row],
    *,
    x: str,
    lines: str,
    path: str | os.PathLike[str],
    title: str,
    ylabel: str = "RMSE",
    predicted: str = "predicted_mse",
    panels: str | None = None,
) -> None:
    """Root mean squared error against ``config[x]`` on log-log axes, written to ``path`` as PNG at 150 dpi.

    One line per distinct ``config[lines]``. Bars are the square roots of the 95 % interval of the mean
    squared error; the dashed line is the square root of ``facts[predicted]`` where there is one; the legend
    holds the least-squares slope of log RMSE on log x.

    Args:
        rows: their samples are squared errors.
        x: configuration key with numbers > 0.
        lines: configuration key whose values name the lines.
        path: where the picture goes; an existing one is replaced.
        title: say the privacy unit and the model here.
        ylabel: with the unit of the error.
        predicted: key of the predicted mean squared error in the facts.
        panels: configuration key whose values get a panel each (default: one panel).

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no rows, a key that a configuration lacks, x or error not positive, or two rows at one
            point of one line.
    """
    checks.path("path", path), checks.instance("lines", lines, str)
    figure = curves(rows, x=x, lines=lines, title=title, ylabel=ylabel, predicted=predicted, panels=panels)
    figure.savefig(path, format="png", dpi=150)


def curves(
    rows: Sequence[Row],
    *,
    x: str,
    lines: str | None,
    title: str,
    ylabel: str = "RMSE",
    predicted: str = "predicted_mse",
    panels: str | None = None,
    word: Callable[[str], str] = str,
) -> "Figure":
    """The figure of :func:`error_curves`; one line where ``lines`` is None. word: what a person calls a key."""
    rows = checks.each_of("rows", rows, Row)
    for name, value in {"x": x, "title": title, "ylabel": ylabel, "predicted": predicted}.items():
        checks.instance(name, value, str)
    parts: dict[str, list[Row]] = {} if rows else {title: []}
    for row in rows:
        parts.setdefault(title if panels is None else str(row.config.get(panels)), []).append(row)
    groups = {name: _grouped(part, x, lines) for name, part in parts.items()}  # refuses before it draws
    figure, all_axes = subplots(len(parts), size=(7, 4.5))
    for axes, (name, group) in zip(all_axes, groups.items(), strict=True):
        _panel(axes, group, x, lines and word(lines), predicted)
        axes.set(xscale="log", yscale="log", xlabel=_verbatim(word(x)), ylabel=ylabel, title=_verbatim(name))
    if panels is not None:
        figure.suptitle(_verbatim(title))
    return figure


def write_csv(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """One line per row: its configuration, then what was measured and how it compares with the prediction.

    mse = mean of the samples with its 95 % interval mse_low, mse_high; rmse = sqrt(mse);
    ratio = mse / predicted_mse; z = (mse - predicted_mse) / standard error. Empty cells where there is no
    prediction. code: what made the row; error: why it ended early, empty where it did not.

    Raises:
        ValueError: a configuration key has the name of a measured column.
        OSError: ``path`` cannot be written.
    """
    checks.path("path", path)
    keys = list(dict.fromkeys(key for row in checks.each_of("rows", rows, Row) for key in row.config))
    if clash := sorted(set(keys) & set(_MEASURED)):
        raise ValueError(f"config keys {clash} are names of measured columns; rename them")
    write_table(path, [*keys, *_MEASURED], ({**row.config, **_measured(row)} for row in rows))


def _measured(row: Row) -> dict[str, object]:
    mse, prediction = row.moments.mean, row.facts.get("predicted_mse")
    low, high = row.moments.interval()
    cells: dict[str, object] = {
        "trials": row.moments.count,
        "mse": mse,
        "mse_low": low,
        "mse_high": high,
        "rmse": math.sqrt(mse) if mse >= 0 else math.nan,
        "seconds": row.seconds,
        "code": row.code,
        "error": row.error or "",
    }
    if not row.moments.count:
        return {key: cells[key] for key in ("trials", "seconds", "code", "error")}
    if prediction is not None:
        cells["predicted_mse"] = prediction
        cells["ratio"] = mse / prediction if prediction else math.nan
        cells["z"] = row.moments.z_score(prediction)
    return cells


def _verbatim(text: str) -> str:
    return text.replace("$", r"\$")  # else a formula


def _grouped(rows: Sequence[Row], x: str, lines: str | None) -> dict[Any, list[Row]]:
    if not rows:
        raise ValueError("rows is empty; there is nothing to draw")
    groups: dict[Any, dict[float, Row]] = {}
    for row in rows:
        if missing := {x, lines or x} - set(row.config):
            raise ValueError(f"config {row.config} has no key {sorted(missing)}")
        at, name = row.config[x], "" if lines is None else str(row.config[lines])
        if isinstance(at, str | list | None) or not at > 0 or not row.moments.mean > 0:
            raise ValueError(
                f"log axes need {x} > 0 and an error > 0, not {x}={at!r} with mean {row.moments.mean!r}"
            )
        if at in groups.setdefault(name, {}):
            raise ValueError(f"two rows at {x}={at!r} on the line {lines}={name}; select the rows first")
        groups[name][at] = row
    return {name: [group[at] for at in sorted(group)] for name, group in groups.items()}


def _panel(axes: "Axes", groups: dict[Any, list[Row]], x: str, lines: str | None, predicted: str) -> None:
    for index, (name, group) in enumerate(groups.items()):
        marker = _MARKERS[index % len(_MARKERS)]  # tells lines apart in grey
        label = "measured" if lines is None else _verbatim(f"{lines}={name}")
        _draw(axes, group, x, label, predicted, _COLOURS[index % len(_COLOURS)], marker)
    axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
    dashed = (
        "; dashed: predicted" if any(predicted in row.facts for group in groups.values() for row in group) else ""
    )
    axes.legend(title=f"bars: 95 % CI of the mean{dashed}", fontsize="small", title_fontsize="small")


def _draw(axes: "Axes", group: list[Row], x: str, label: str, predicted: str, colour: str, marker: str) -> None:
    where = np.array([row.config[x] for row in group], dtype=float)  # (points,)
    rmse = np.sqrt([row.moments.mean for row in group])
    ends = np.sqrt(np.maximum([row.moments.interval() for row in group], 0.0))  # (points, 2)
    if len(group) > 1:
        slope = np.polyfit(np.log(where), np.log(rmse), 1)[0]
        label = f"{label}, slope {slope:.2f}"
    bars = np.abs(ends.T - rmse)  # (2, points): below, above
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "capsize": 3, "linewidth": 1}
    axes.errorbar(where, rmse, yerr=np.where(np.isfinite(bars), bars, 0.0), label=label, **style)
    known = [row for row in group if predicted in row.facts]
    if known:
        theory = np.sqrt([row.facts[predicted] for row in known])
        axes.plot([row.config[x] for row in known], theory, "--", color=colour, linewidth=1.5, alpha=0.7)


def ratio_strip(rows: Sequence[Row], *, path: str | os.PathLike[str], title: str) -> None:
    """Measured over predicted mean squared error of each row that has a prediction, with its 95 % interval, as PNG.

    Rows in order from left to right on a linear axis around 1: the picture most sensitive to a wrong formula.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no row has ``facts["predicted_mse"]`` > 0.
    """
    checks.path("path", path)
    figure = ratios(checks.each_of("rows", rows, Row), checks.instance("title", title, str))
    figure.axes[0].set(xlabel="configuration, in the order of results.csv")
    figure.savefig(path, format="png", dpi=150)


def ratios(rows: Sequence[Row], title: str) -> "Figure":
    """The figure of :func:`ratio_strip`."""
    known = [row for row in rows if row.facts.get("predicted_mse", 0) > 0]
    if not known:
        raise ValueError("no row has a predicted_mse; there is nothing to compare")
    predicted = np.array([row.facts["predicted_mse"] for row in known])
    ratio = np.array([row.moments.mean for row in known]) / predicted
    ends = np.array([row.moments.interval() for row in known]) / predicted[:, None]  # (rows, 2)
    figure, (axes,) = subplots(size=(8, 3))
    axes.axhline(1, color="black", linewidth=0.8)
    bars = np.abs(ends.T - ratio)
    axes.errorbar(range(len(known)), ratio, yerr=bars, fmt="o", color=_COLOURS[0], markersize=3, linewidth=0.8)
    axes.set(xlabel="configuration", ylabel="measured / predicted MSE", title=title)
    return figure
