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
    Marked as the paper's is the panel in which what it says of the figure holds; p = 0 is its local
    model. On cut rows, whose norm has a bound, "SSP" and "local" have the exact guarantee.
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
from statistics import linear_regression

import torch
from baselines import SufficientStatistics
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

DELTA = 1e-6
HEIGHT = 100  # m, rows of the sketch
EXPONENTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)
ROWS_AT_ONCE = 2**18  # of one draw
BUCKETS = 64  # of a sketch row, at most
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
            signed = self.buckets[order] * signs
            found[run] = signed.view(HEIGHT, -1, d).sum(1)
        return found

    def larger(self, n, scale, generator):
        """As of n users, far more than these: normal sums with their moments; scale (d,) multiplies
        columns.
        """
        matrix = self.moments.matrix * (n / self.moments.n) * scale[:, None] * scale
        count = HEIGHT * BUCKETS
        values, vectors = torch.linalg.eigh(matrix / count)
        normal = torch.randn(count, len(matrix), dtype=torch.float64, generator=generator)
        # eigenvalues of 0 may come out below it
        deviations = values.clamp_min(0).sqrt()
        return Sums(SecondMoments(n, matrix), normal * deviations @ vectors.mT)


def drawn(n, rows):
    """The sums of n rows: those of a bucket are consecutive. rows(count) draws some more."""
    buckets = HEIGHT * min(BUCKETS, n // HEIGHT)
    sizes = torch.full((buckets,), n // buckets)
    sizes[: n % buckets] += 1
    sums = []
    moments = 0
    for part in sizes.split(max(1, ROWS_AT_ONCE * buckets // n)):
        total = int(part.sum())
        A = rows(total).double()
        moments = moments + A.mT @ A
        owner = torch.arange(len(part)).repeat_interleave(part)
        empty = torch.zeros(len(part), A.shape[1], dtype=A.dtype)
        sums.append(empty.index_add_(0, owner, A))
    return Sums(SecondMoments(n, moments), torch.cat(sums))


def spectrum(n, d, k, generator):
    """Rows of k singular values sqrt(n/k), up to a relative error of sqrt(k/n) where they are many;
    cut to norm 2.
    """
    if n <= WHOLE:
        A = shortened(spectrum_rows(n, d, k, generator=generator), 2.0)
        rest = iter(A.split(1))
        return drawn(n, lambda count: torch.cat([next(rest) for _ in range(count)]))

    def rows(count):
        normal = torch.randn(count, k, generator=generator)
        return shortened(normal / math.sqrt(k), 2.0)

    basis, _ = torch.linalg.qr(torch.randn(d, k, dtype=torch.float64, generator=generator))
    inside = drawn(n, rows)
    moments = SecondMoments(n, basis @ inside.moments.matrix @ basis.mT)
    return Sums(moments, inside.buckets @ basis.mT)


def labelled(n, d, cut, x, generator):
    """Rows (a, <a, x>), a standard normal; cut: all entries to [-1, 1]."""

    def rows(count):
        A = torch.randn(count, d, generator=generator)
        if not cut:
            A = A.double()
            return torch.cat([A, (A @ x)[:, None]], 1)
        A = A.clamp_(-1, 1).double()
        b = (A @ x).clamp_(-1, 1)
        return torch.cat([A, b[:, None]], 1)

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
    SA = sums.sketches(runs, generator)
    n = sums.moments.n
    for p in EXPONENTS:
        variance = 2 * math.log(1.25 / DELTA) / (epsilon**2 * n**p)
        # a row of the sketch adds up the noise of n/m clients
        normal = torch.randn(SA.shape, dtype=SA.dtype, generator=generator)
        Y = SA + math.sqrt(variance * n / HEIGHT) * normal
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
    d = moments.columns
    options = {"dtype": torch.float64, "generator": generator}
    values, vectors = torch.linalg.eigh(moments.matrix)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    shifted = root + math.sqrt(variance) * torch.randn(runs, d, d, **options)
    # Bartlett's triangle: chi on the diagonal, normals below
    triangle = torch.randn(runs, d, d, **options).tril(-1)
    freedom = (moments.n - d - torch.arange(d, dtype=torch.float64)) / 2
    halves = torch._standard_gamma(freedom.expand(runs, d).contiguous(), generator)
    triangle = triangle + torch.diag_embed((2 * halves).sqrt())
    return shifted.mT @ shifted + variance * triangle @ triangle.mT


def beside(moments: SecondMoments, epsilon, runs, generator):
    """A client's own noise and a curator's, (runs, d, d + 1), both at an exact guarantee."""
    repeats = {"generator": generator, "sample_shape": (runs,)}
    bounds = {"columns": 10, "bound": math.sqrt(10), "label_bound": 1.0}
    local = LocalRows(**bounds, epsilon=epsilon, delta=DELTA)
    yield "none", "local", local.sample_tally(moments, **repeats)["gram"]
    curator = SufficientStatistics(**bounds, epsilon=epsilon, delta=DELTA)
    noisy = curator.sample_estimate(moments, **repeats)
    yield "none", "SSP", torch.cat([noisy.gram, noisy.cross[..., None]], -1)


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
                repeats = {"generator": generator, "sample_shape": (config.runs,)}
                found = list(noisy(last, epsilon, config.runs, generator))
                local = LocalRows(50, 2.0, epsilon, DELTA).sample_tally(last.moments, **repeats)
                found.append(("none", "local", local["gram"]))
                release = GramRelease(n, 50, 2.0, epsilon, DELTA)
                gram = release.sample_estimate(last.moments, **repeats).gram
                found.append(("none", "Gram", gram))
                cells = {"rows": "spectrum", "n": n, "parameter": k, "epsilon": epsilon}
                for summed, name, matrix in found:
                    errors = psi(last.moments, top_directions(matrix, k))
                    record(report, errors, **cells, sums=summed, method=name)


def ridge(config, report, generator, cut):
    """Figures 3 and 4."""
    kind = "cut" if cut else "whole"
    direction = torch.randn(10, dtype=torch.float64, generator=generator)
    for n in (*config.drawn, *config.normal):
        if n > MOST_WHOLE and not cut:
            continue
        if n in config.drawn:
            last = labelled(n, 10, cut, math.sqrt(n) * direction, generator)
        else:
            scale = torch.ones(11, dtype=torch.float64)
            # labels grow with x, whose norm is of order sqrt(n), unless they are cut
            if not cut:
                scale[-1] = math.sqrt(n / last.moments.n)
            last = last.larger(n, scale, generator)
        for epsilon in config.ridge_epsilons:
            found = list(noisy(last, epsilon, config.runs, generator))
            # rows that are not cut have no bound to calibrate to
            if cut:
                found += beside(last.moments, epsilon, config.runs, generator)
            for summed, name, G in found:
                for weight in config.ridges:
                    solution = solve_ridge(G[:, :10, :10], G[:, :10, -1], weight)
                    errors = phi(last.moments, solution, weight)
                    cells = {"rows": kind, "n": n, "parameter": weight, "epsilon": epsilon}
                    record(report, errors, **cells, sums=summed, method=name)


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
    settings = dict.fromkeys(
        (r["rows"], r["sums"], r["parameter"], r["epsilon"]) for r in rows if r["sums"] != "none"
    )
    for kind, sums, parameter, epsilon in settings:
        cells = {"rows": kind, "sums": sums, "parameter": parameter, "epsilon": epsilon}
        least = 0.0 if kind == "spectrum" else 1.0
        for p in EXPONENTS[:-1]:
            n, errors = columns(rows, "n", "error", **cells, method=f"p = {p:g}")
            excess = {x: error - least for x, error in zip(n, errors, strict=True)}
            points = {x: y for x, y in excess.items() if y > ROUNDING}
            last = max(points, default=1)
            yield {
                **cells,
                "p": p,
                "to_4e7": _slope(points, 4e6, 4e7),
                "last": _slope(points, last / 101, last),
                "first_order": FIRST_ORDER[kind, sums](p),
            }


def _slope(points: dict[int, float], low, high):
    """Of ln y in ln x from ``low`` to ``high``; NaN for fewer than two points above rounding."""
    x = [math.log(n) for n in points if low <= n <= high]
    y = [math.log(points[n]) for n in points if low <= n <= high]
    return linear_regression(x, y).slope if len(x) > 1 else math.nan


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
    weights = sorted({row["parameter"] for row in rows if row["rows"] == "cut"})
    middle = weights[len(weights) // 2]
    second, third, fourth = [], [], []
    for row in rows:
        kind = (row["rows"], row["sums"])
        if row["rows"] == "spectrum":
            if row["sums"] != "all rows":
                second.append(row)
            continue
        if row["parameter"] == middle and kind != ("cut", SKETCHED):
            third.append(row)
        if kind == ("whole", "all rows"):
            fourth.append(row)
    return {
        "figure2.png": curves(second, "psi", "k"),
        "figure3.png": curves(third, "phi", "lambda"),
        "figure4.png": curves(fourth, "phi", "lambda"),
    }


def curves(rows, error, parameter):
    """A panel for each kind of rows and sums, epsilon and parameter; a line for each method."""
    shown = [r for r in rows if r["sums"] != "none"]
    kinds = {(r["epsilon"], r["rows"], r["sums"], r["parameter"]) for r in shown}
    panels = sorted(kinds, key=lambda panel: (panel[0], panel[1] == "cut", *panel[2:]))
    wide = len({panel[1:] for panel in panels})
    figure, all_axes = subplots(len(panels), size=(4.6, 3.4), wide=max(wide, 2))
    styles = {f"p = {p:g}": colour for p, colour in zip(EXPONENTS, COLOURS, strict=True)}
    styles |= {"Laplace": "#b5de2b", "local": "#8c564b", "Gram": "#0072B2", "SSP": "#0072B2"}
    for axes, (epsilon, kind, sums, value) in zip(all_axes, panels, strict=False):
        mine = [r for r in rows if r["rows"] == kind and r["sums"] in (sums, "none")]
        for name, colour in styles.items():
            x, y, bars = columns(
                mine, "n", "error", "standard_error", epsilon=epsilon, parameter=value, method=name
            )
            excess = [value - (error == "phi") for value in y]
            draw_line(axes, x, excess, bars, label=name, colour=colour, least=ROUNDING)
        axes.axvline(4e7, color="#999999", linestyle=":", linewidth=0.8)
        title = f"epsilon = {epsilon:g}, {parameter} = {value:g}"
        if kind != "spectrum":
            title += f", {'cut' if kind == 'cut' else 'not cut'}, {sums}"
        if kind == "spectrum" or (kind, sums) == ("whole", "all rows"):
            title += " (the paper's)"
        draw_panel(axes, title, error + (" - 1" if error == "phi" else ""))
        axes.legend(fontsize=6, ncols=2)
    figure.suptitle(
        "A client's noise of variance n^-p; bars: standard errors; dotted: the largest n of the "
        "paper;\nwhere a title does not say so, the setting is not the paper's",
        fontsize=9,
    )
    return figure


EXPERIMENT = Experiment(measure, Config(), SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
