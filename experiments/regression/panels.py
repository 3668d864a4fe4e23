"""How the figures of this folder draw an error against the number of clients, on logarithmic
axes.
"""

from collections.abc import Sequence


def draw_line(axes, n: Sequence[int], errors: Sequence[float], bars, *, label, colour, least=0.0):
    """Errors above ``least``; their bars do not leave the axes."""
    points = [point for point in zip(n, errors, bars, strict=True) if point[1] > least]
    if points:
        x, y, bar = zip(*points, strict=True)
        # on a logarithmic axis a bar down to 0 has no end
        bar = [min(length, 0.9 * error) for length, error in zip(bar, y, strict=True)]
        style = {"color": colour, "marker": ".", "markersize": 4, "linewidth": 1}
        axes.errorbar(x, y, bar, label=label, capsize=1.5, **style)


def draw_panel(axes, title, error):
    """The axes of one setting."""
    axes.set(xscale="log", yscale="log", xlabel="clients n", ylabel=error)
    axes.set_title(title, fontsize=9)
    axes.grid(True, which="both", linewidth=0.2)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/regression/ridge.py")
