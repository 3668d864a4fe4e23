"""How error falls with n where a client's noise has variance n^-p: low rank and ridge regression,
every p of the paper.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Figures 2, 3 and 4, and the text's n =
4e7: variance
    2 ln(1.25/delta)/(epsilon^2 n^p) on every entry, p = 1, .9, .8, .7, .6, .5, 0, and sums of m
    Laplace(1/epsilon).
Data: "spectrum": d = 50, k singular values sqrt(n/k), the others 1/n; "cut": A ~ N(0, 1), b = A x,
x ~ N(0, n), all
    cut to [-1, 1]; "whole": the same, not cut (how the paper scales is not said). Sums: m = 100, or
    all rows as they are, without a sketch. lambda, epsilon as in the figures.
What: below 4e7 the rows are drawn, added up in buckets and forgotten; beyond, a bucket's sum is
normal with the moments
    of the last size, which costs the same at every n. The noise of all rows is a shift within A's
    columns and a Wishart matrix beyond them. To first order psi, or phi - 1, is a power of n
    (first_order of slopes.csv): with all rows 1 - 2p on whole rows, -2p on cut rows, -1 - p for
    psi; with 100 sums 1 - p on whole rows, -p for psi.
Command:  python experiments/regression/exponents.py
Expected: slopes near the first order's where noise has become small. The paper's limit between p =
.6, which falls, and
    p = .5, which does not, is that of whole rows without a sketch, 1 - 2p; with 100 sums every p <
    1 rises there; on cut rows, and for psi, every p > 0 falls.
Output: results/regression/exponents/errors.csv, slopes.csv, figure2.png, figure3.png, figure4.png.
Artifact: Burkhardt et al. (2025) | Figures 2, 3, 4
Status: the limit between p = .6 and .5 holds without a sketch, on rows that are not cut, and
nowhere else
Time: 80 CPU-seconds; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from panels import draw_line, draw_panel
from synthetic import spectrum_rows
from torch import Tensor

from torchdp.randomness import keyed_generator
from torchdp.regression import (
    GramRelease,
    LocalRows,
    SecondMoments,
    phi,
    psi,
    solve_ridge,
    top_directions,
)
from torchdp.regression.errors import shortened
from torchdp.simulate import Experiment, columns, subplots
from torchdp.simulate.report import read_table

DELTA, HEIGHT = 1e-6, 100
EXPONENTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)
ROWS_AT_ONCE, BUCKETS = 2**18, 64  # of one draw; a sketch row's, at most
WHOLE = 200_000  # rows that are held at once
ROUNDING = 1e-11  # of psi and phi
SKETCHED = f"{HEIGHT} sums"
MOST_WHOLE = 10**9  # n up to which the least loss is above the rounding of b^T b = n^2 d
COLOURS = ("#000000", "#440154", "#3b528b", "#21918c", "#5ec962", "#D55E00", "#999999")


@dataclass(frozen=True)
class Sums:
    """Rows as the experiment needs them: their moments, and signed sums of buckets from which
    sketches are made.
    """

    moments: SecondMoments
    buckets: Tensor  # (m * buckets of a sketch row, d)

    def sketches(self, runs, generator):
        """S A for fresh sketches of equally full rows: (runs, m, d). The rows' distribution is
        symmetric.
        """
        count, d = self.buckets.shape
        found = torch.empty(runs, HEIGHT, d, dtype=torch.float64)
        for run in range(runs):
            order = torch.randperm(count, generator=generator)
            signs = torch.randint(0, 2, (count, 1), generator=generator) * 2 - 1
            found[run] = (self.buckets[order] * signs).view(HEIGHT, -1, d).sum(1)
        return found

    def larger(self, n, scale, generator):
        """As of n users, far more than these: normal sums with their moments; scale (d,) multiplies
        columns.
        """
        matrix = self.moments.matrix * (n / self.moments.n) * scale[:, None] * scale
        root = torch.linalg.eigh(matrix / (HEIGHT * BUCKETS))
        normal = torch.randn(
            HEIGHT * BUCKETS, len(matrix), dtype=torch.float64, generator=generator
        )
        return Sums(
            SecondMoments(n, matrix),
            normal * root.eigenvalues.clamp_min(0).sqrt() @ root.eigenvectors.mT,
        )


def drawn(n, rows):
    """The sums of n rows: those of a bucket are consecutive. rows(count) draws some more."""
    buckets = HEIGHT * min(BUCKETS, n // HEIGHT)
    sizes = torch.full((buckets,), n // buckets)
    sizes[: n % buckets] += 1
    sums, moments = [], None
    for part in sizes.split(max(1, ROWS_AT_ONCE * buckets // n)):
        A = rows(int(part.sum())).double()
        moments = (moments if moments is not None else 0) + A.mT @ A
        owner = torch.arange(len(part)).repeat_interleave(part)
        sums.append(torch.zeros(len(part), A.shape[1], dtype=A.dtype).index_add_(0, owner, A))
    return Sums(SecondMoments(n, moments), torch.cat(sums))


def spectrum(n, d, k, generator):
    """Rows of k singular values sqrt(n/k), up to a relative error of sqrt(k/n) where they are many;
    cut to norm 2.
    """
    if n <= WHOLE:
        A = shortened(spectrum_rows(n, d, k, generator=generator), 2.0)
        rest = iter(A.split(1))
        return drawn(n, lambda count: torch.cat([next(rest) for _ in range(count)]))
    basis = torch.linalg.qr(torch.randn(d, k, dtype=torch.float64, generator=generator)).Q
    inside = drawn(
        n, lambda count: shortened(torch.randn(count, k, generator=generator) / math.sqrt(k), 2.0)
    )
    return Sums(
        SecondMoments(n, basis @ inside.moments.matrix @ basis.mT), inside.buckets @ basis.mT
    )


def labelled(n, d, cut, x, generator):
    """Rows (a, <a, x>), a standard normal; cut: all entries to [-1, 1]."""

    def rows(count):
        A = torch.randn(count, d, generator=generator)
        A = A.clamp_(-1, 1) if cut else A
        b = A.double() @ x
        return torch.cat([A.double(), (b.clamp_(-1, 1) if cut else b)[:, None]], 1)

    return drawn(n, rows)


@dataclass(frozen=True)
class Config:
    drawn: tuple[int, ...] = tuple(round(1000 * 1.5**i) for i in (*range(0, 26, 2), 26))  # to 3.8e7
    normal: tuple[int, ...] = tuple(10**i for i in range(8, 13))
    ranks: tuple[int, ...] = (5, 10)
    rank_epsilons: tuple[float, ...] = (0.1, 0.5)
    ridge_epsilons: tuple[float, ...] = (0.01, 0.03, 0.05, 0.1)
    ridges: tuple[float, ...] = (1.0, 10.0, 100.0)
    runs: int = 20


SMOKE = Config((1000, 20_000), (10**8, 10**9, 10**10, 10**12), (5,), (0.5,), (0.1,), (10.0,), 3)


def noisy(sums, epsilon, runs, generator):
    """(what is summed, method, Y^T Y (runs, d, d)) for each noise of the paper."""
    SA, n = sums.sketches(runs, generator), sums.moments.n
    for p in EXPONENTS:
        variance = 2 * math.log(1.25 / DELTA) / (epsilon**2 * n**p)
        Y = SA + math.sqrt(variance * n / HEIGHT) * torch.randn(
            SA.shape, dtype=SA.dtype, generator=generator
        )
        yield SKETCHED, f"p = {p:g}", Y.mT @ Y
        yield "all rows", f"p = {p:g}", whole_gram(sums.moments, variance, runs, generator)
    # m Laplace: a difference of two Gamma(m)
    shape = torch.full(SA.shape, float(HEIGHT), dtype=SA.dtype)
    noise = torch._standard_gamma(shape, generator) - torch._standard_gamma(shape, generator)
    Y = SA + noise / epsilon
    yield SKETCHED, "Laplace", Y.mT @ Y


def whole_gram(moments: SecondMoments, variance, runs, generator):
    """(A + G)^T (A + G), G of independent N(0, variance): within A's columns a shift, beyond them a
    Wishart matrix.
    """
    d, options = moments.columns, {"dtype": torch.float64, "generator": generator}
    values, vectors = torch.linalg.eigh(moments.matrix)
    shifted = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT + math.sqrt(
        variance
    ) * torch.randn(runs, d, d, **options)
    triangle = torch.randn(runs, d, d, **options).tril(-1)  # of Bartlett
    freedom = (moments.n - d - torch.arange(d, dtype=torch.float64)) / 2
    diagonal = (2 * torch._standard_gamma(freedom.expand(runs, d).contiguous(), generator)).sqrt()
    triangle = triangle + torch.diag_embed(diagonal)
    return shifted.mT @ shifted + variance * triangle @ triangle.mT


def record(report, errors, **cells):
    spread = errors.std() / math.sqrt(len(errors)) if len(errors) > 1 else 0.0
    report.row("errors", **cells, error=errors.mean(), standard_error=spread)


def low_rank(config, report, generator):
    """Figure 2."""
    for k in config.ranks:
        last = None
        for n in (*config.drawn, *config.normal):
            if n in config.drawn:
                last = spectrum(n, 50, k, generator)
            else:
                last = last.larger(n, torch.ones(50), generator)
            for epsilon in config.rank_epsilons:
                draw = {"generator": generator, "sample_shape": (config.runs,)}
                found = list(noisy(last, epsilon, config.runs, generator))
                local = LocalRows(50, 2.0, epsilon, DELTA).sample_tally(last.moments, **draw)[
                    "gram"
                ]
                gram = (
                    GramRelease(n, 50, 2.0, epsilon, DELTA)
                    .sample_estimate(last.moments, **draw)
                    .gram
                )
                for summed, name, matrix in (
                    *found,
                    ("none", "local", local),
                    ("none", "Gram", gram),
                ):
                    cells = {"rows": "spectrum", "n": n, "parameter": k, "epsilon": epsilon}
                    errors = psi(last.moments, top_directions(matrix, k))
                    record(report, errors, **cells, sums=summed, method=name)


def ridge(config, report, generator, cut):
    """Figures 3 and 4."""
    direction, last = torch.randn(10, dtype=torch.float64, generator=generator), None
    for n in (*config.drawn, *(each for each in config.normal if cut or each <= MOST_WHOLE)):
        x = math.sqrt(n) * direction
        scale = torch.ones(11, dtype=torch.float64)
        if last is None or n in config.drawn:
            last = labelled(n, 10, cut, x, generator)
        else:
            scale[-1] = 1.0 if cut else math.sqrt(n / last.moments.n)
            last = last.larger(n, scale, generator)
        for epsilon in config.ridge_epsilons:
            for summed, name, G in noisy(last, epsilon, config.runs, generator):
                for weight in config.ridges:
                    cells = {
                        "rows": "cut" if cut else "whole",
                        "n": n,
                        "parameter": weight,
                        "epsilon": epsilon,
                    }
                    found = phi(
                        last.moments, solve_ridge(G[:, :-1, :-1], G[:, :-1, -1], weight), weight
                    )
                    record(report, found, **cells, sums=summed, method=name)


FIRST_ORDER = {
    ("spectrum", SKETCHED): lambda p: -p,
    ("spectrum", "all rows"): lambda p: -1 - p,
    ("cut", SKETCHED): lambda p: 0.0,  # the sketch's own error stays
    ("cut", "all rows"): lambda p: -2 * p,
    ("whole", SKETCHED): lambda p: 1 - p,
    ("whole", "all rows"): lambda p: 1 - 2 * p,
}


def slopes(rows):
    """Of psi or phi - 1 in log n by least squares: to the paper's largest n, and over our last two
    decades.
    """
    found = []
    for kind, sums, parameter, epsilon in dict.fromkeys(
        (r["rows"], r["sums"], r["parameter"], r["epsilon"]) for r in rows if r["sums"] != "none"
    ):
        at = {"rows": kind, "sums": sums, "parameter": parameter, "epsilon": epsilon}
        for p in EXPONENTS[:-1]:
            n, errors = columns(rows, "n", "error", **at, method=f"p = {p:g}")
            excess = [
                (math.log(x), math.log(error - (kind != "spectrum")))
                for x, error in zip(n, errors, strict=True)
                if error - (kind != "spectrum") > ROUNDING
            ]
            last = math.exp(max((point[0] for point in excess), default=0.0))
            paper = _slope(
                [point for point in excess if math.log(4e6) <= point[0] <= math.log(4e7)]
            )
            ours = _slope([point for point in excess if point[0] >= math.log(last / 101)])
            found.append(
                {
                    **at,
                    "p": p,
                    "to_4e7": paper,
                    "last": ours,
                    "first_order": FIRST_ORDER[kind, sums](p),
                }
            )
    return found


def _slope(points: list[tuple[float, float]]):
    if len(points) < 2:  # fewer above rounding
        return math.nan
    middle = sum(x for x, _ in points) / len(points)
    return sum((x - middle) * y for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


def measure(config, report):
    torch.set_num_threads(1)
    generator = keyed_generator(b"exponents")
    low_rank(config, report, generator)
    for cut in (True, False):
        ridge(config, report, generator, cut)
    for row in slopes(read_table(report.folder / "errors.csv")):
        report.row("slopes", **row)


def draw(tables):
    rows = tables["errors"]
    weights = sorted({r["parameter"] for r in rows if r["rows"] == "cut"})
    middle = 10.0 if 10.0 in weights else weights[0]
    third = [r for r in rows if r["rows"] != "spectrum" and r["parameter"] == middle]
    return {
        "figure2.png": curves(
            [r for r in rows if r["rows"] == "spectrum" and r["sums"] != "all rows"], "psi", "k"
        ),
        "figure3.png": curves(
            [r for r in third if (r["rows"], r["sums"]) != ("cut", SKETCHED)], "phi", "lambda"
        ),
        "figure4.png": curves(
            [r for r in rows if (r["rows"], r["sums"]) == ("whole", "all rows")], "phi", "lambda"
        ),
    }


def curves(rows, error, parameter):
    """A panel for each kind of rows and sums, epsilon and parameter; a line for each method."""
    panels = list(
        dict.fromkeys(
            (r["epsilon"], r["rows"], r["sums"], r["parameter"])
            for r in rows
            if r["sums"] != "none"
        )
    )
    panels.sort(key=lambda panel: (panel[0], panel[1] == "cut", panel[2], panel[3]))
    wide = len({panel[1:] for panel in panels})
    figure, all_axes = subplots(len(panels), size=(4.6, 3.4), wide=max(wide, 2))
    styles = {f"p = {p:g}": colour for p, colour in zip(EXPONENTS, COLOURS, strict=True)}
    styles |= {"Laplace": "#b5de2b", "local": "#8c564b", "Gram": "#0072B2"}
    for axes, (epsilon, kind, sums, value) in zip(all_axes, panels, strict=False):
        mine = [r for r in rows if r["rows"] == kind and r["sums"] in (sums, "none")]
        for name, colour in styles.items():
            x, y, bars = columns(
                mine, "n", "error", "standard_error", epsilon=epsilon, parameter=value, method=name
            )
            excess = [value - (error == "phi") for value in y]
            draw_line(axes, x, excess, bars, label=name, colour=colour, least=ROUNDING)
        axes.axvline(4e7, color="#999999", linestyle=":", linewidth=0.8)
        what = {"spectrum": "", "cut": ", cut", "whole": ", not cut"}[kind] + (
            "" if kind == "spectrum" else f", {sums}"
        )
        title = f"epsilon = {epsilon:g}, {parameter} = {value:g}{what}"
        draw_panel(axes, title, error + (" - 1" if error == "phi" else ""))
    figure.axes[0].legend(fontsize=6, ncols=2)
    figure.suptitle(
        "A client's noise of variance n^-p; bars: standard errors;\ndotted: the largest n of the paper",
        fontsize=9,
    )
    return figure


EXPERIMENT = Experiment(measure, Config(), SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
