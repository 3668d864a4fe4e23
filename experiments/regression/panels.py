"""How the figures of this folder draw an error against the number of clients, on logarithmic
axes.
"""

from collections.abc import Sequence


def draw_line(axes, n: Sequence[int], errors: Sequence[float], bars, *, label, colour, least=0.0):
    """Errors above ``least``; their bars do not leave the axes."""
    points = [
        (x, y, min(bar, 0.9 * y)) for x, y, bar in zip(n, errors, bars, strict=True) if y > least
    ]
    if points:
        x, y, bar = zip(*points, strict=True)
        axes.errorbar(
            x, y, bar, label=label, color=colour, marker=".", markersize=4, capsize=1.5, linewidth=1
        )


def draw_panel(axes, title, error):
    """The axes of one setting."""
    axes.set(xscale="log", yscale="log", xlabel="clients n", ylabel=error)
    axes.set_title(title, fontsize=9)
    axes.grid(True, which="both", linewidth=0.2)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/regression/ridge.py")
