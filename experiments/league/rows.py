"""The league's rows: the same work at the same privacy, who does it, and how answers are judged."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sides import side

Verdict = dict[str, float | None]


def verdict(error, mended=None, seen=None):
    """mended: of shares clipped and normalised; seen: of the guarantee."""
    return {"error": error, "mended": mended, "seen": seen}


@dataclass(frozen=True)
class Row:
    """error says what is counted, less is better; sides maps each side to its arithmetic and who is
    trusted.

    judge(answer, check, **settings) -> Verdict. seen names what the guarantee is checked by: it may
    be at most ``promised`` + ``slack``; "" where nothing is checked. warm, quick: settings of the
    first call and of a short run.
    """

    name: str
    error: str
    settings: Mapping[str, Any]
    sides: Mapping[str, str]
    judge: Callable[..., Verdict]
    seen: str = ""
    promised: float = 0.0
    slack: float = 0.0
    warm: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """What pip installs, one call after another, into an environment of the peer's own; what it was
    built for.
    """

    installs: tuple[str, ...]
    purpose: str


def rms(errors):
    return float(np.sqrt(np.mean(errors**2)))


def frequency(subset=1, unary=False):
    """seen: the epsilon of the reports of n users who all hold type 0, whose sets have so many of
    the k types.
    """

    def judge(answer, check: list | None, n, k, epsilon):
        truth = np.bincount(side.crowd(n, k), minlength=k) / n
        error = None
        if "raw" in answer:
            raw = np.array(answer["raw"])
            error = rms(raw - truth)
            cut = np.maximum(raw, 0)
        else:
            cut = np.array(answer["mended"])
        seen = None
        if check is not None:
            own = check[0] / n
            other = sum(check[1:]) / (k - 1) / n
            odds = other / (1 - other) if unary else subset / (k - subset)
            seen = math.log(own / (1 - own) / odds)
        return verdict(error, rms(cut / cut.sum() - truth), seen)

    return judge


def normal_share(x):
    """Of a standard normal number at most x."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def delta_of(sigma, epsilon):
    """Balle, Wang (2018), Theorem 8, at sensitivity 1."""
    half = 1 / (2 * sigma)
    shift = epsilon * sigma
    return normal_share(half - shift) - math.exp(epsilon) * normal_share(-half - shift)


def calibration(sigma, check, epsilon, delta):
    low = 1e-3
    high = 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        if delta_of(middle, epsilon) > delta:
            low = middle
        else:
            high = middle
    return verdict(sigma / high - 1, seen=delta_of(sigma, epsilon) / delta)


def noise(values, check, **settings):
    return verdict(float(np.std(values)))


def strategy(worst):
    """seen: what decoding leaves of the queries; the error is computed at the strategy's own
    sensitivity.

    Someone who takes part in every n/epochs-th step moves the answers by at most the root of the
    sum of the absolute products of these columns; that is attained where columns are orthogonal, or
    no product is negative.
    """

    def judge(C, check, n, epochs=1):
        R = np.array(C)
        W = np.tri(n)
        L = W @ np.linalg.pinv(R, rcond=1e-12)
        products = np.abs(R.T @ R)
        period = n // epochs
        moved = max(products[i::period, i::period].sum() for i in range(period))
        variances = (L**2).sum(1)
        variance = variances.max() if worst else variances.mean()
        error = math.sqrt(variance) * math.sqrt(moved)
        return verdict(error, seen=float(np.abs(L @ R - W).max()))

    return judge


def number(value, check, **settings):
    return verdict(value)


def regression(w, check, n, d, epsilon, delta):
    X, y = side.table(n, d)
    least = np.linalg.lstsq(X, y, rcond=None)[0]
    error = (rms(X @ np.array(w) - y) / rms(X @ least - y)) ** 2 - 1
    return verdict(error)


def against(truth: Callable[..., np.ndarray]):
    return lambda answer, check, **settings: verdict(rms(np.array(answer) - truth(**settings)))


def cumulative(n, k, **settings):
    """Shares of users at most 0, at most 1, ...: several estimates, (times, k), are held against
    them.
    """
    return np.cumsum(np.bincount(side.crowd(n, k), minlength=k)) / n


def poisson_delta(mean, epsilon, instances, step=1e-5):
    """delta of so many counts with Poisson noise, each moved by one: losses composed by Fourier."""
    reach = 12 * math.sqrt(mean)
    k = np.arange(max(1, int(mean - reach)), int(mean + reach))
    factorials = np.array([math.lgamma(count + 1) for count in k])
    chances = np.exp(k * math.log(mean) - mean - factorials)
    size = 2**21
    # losses of the grid's cells: the upper half stands for negative ones
    losses = step * ((np.arange(size) + size // 2) % size - size // 2)
    gain = np.maximum(0, -np.expm1(epsilon - losses))
    worst = 0.0
    for sign in (1, -1):  # the count one higher, or one lower
        loss = sign * np.log((k + (sign > 0)) / mean)
        grid = np.zeros(size)
        np.add.at(grid, np.round(loss / step).astype(int) % size, chances)
        total = np.fft.irfft(np.fft.rfft(grid) ** instances, size)
        worst = max(worst, float((np.maximum(total, 0) * gain).sum()))
    return worst


def bits(deviation, check, users, epsilon, delta, instances):
    seen = poisson_delta(deviation**2, epsilon, instances) / delta
    return verdict(deviation, seen=seen)


def clipped(total, check, n, d, hidden, classes, bound):
    """error: relative, of the sum of clipped gradients, by hand in float64; seen: the longest
    example alone.
    """
    parameters, x, y = side.network(n, d, hidden, classes)
    A, a, B, b = [values.astype(float) for values in parameters]
    x = x.astype(float)
    before = x @ A.T + a
    after = np.maximum(before, 0)
    logits = after @ B.T + b
    top = np.exp(logits - logits.max(1, keepdims=True))
    # gradients of the loss by the outputs of both layers
    out = top / top.sum(1, keepdims=True) - np.eye(classes)[y]
    back = (out @ B) * (before > 0)
    # an example's gradient of a layer is an outer product, with a 1 for the bias
    first = (back**2).sum(1) * ((x**2).sum(1) + 1)
    second = (out**2).sum(1) * ((after**2).sum(1) + 1)
    scale = np.minimum(1, bound / np.sqrt(first + second))[:, None]
    back = scale * back
    out = scale * out
    parts = (back.T @ x, back.sum(0), out.T @ after, out.sum(0))
    truth = np.concatenate([part.ravel() for part in parts])
    error = float(np.linalg.norm(np.array(total) - truth) / np.linalg.norm(truth))
    return verdict(error, seen=max(check) / bound)


def consistent(found, check, n, size, sigma):
    """seen: by how much two of the answers differ on what both imply, of n."""
    true, _ = side.marginals(n, size, sigma)
    answers = np.array(found)
    tables = answers.reshape(3, size, size)
    difference = tables[0].sum(0) - tables[1].sum(1)
    return verdict(rms(answers - true), seen=float(np.abs(difference).max()) / n)


CROWD = {"n": 20_000, "k": 128, "epsilon": 1.0}
FEW = {"n": 2_000, "k": 16}
TOTAL = {"epsilon": 1.0, "delta": 1e-6}
SHARES = "RMSE of 128 raw shares"
LOCAL = "nobody trusted; "
FLOATS = LOCAL + "floating-point chances"
WHOLE = LOCAL + "integer chances, system's cipher"
FREQUENCY = {
    "seen": "epsilon",
    "promised": 1.0,
    "slack": 0.15,
    "warm": {"n": 200},
    "quick": FEW,
}
CURATOR = "curator; real numbers"
CERTIFIED = {"torchdp": "gap certified", "jax-privacy": "no certificate"}
RESIDUAL = {"seen": "residual", "slack": 1e-7, "quick": {"n": 8}}
ROWS = (
    Row(
        "randomized response", SHARES, CROWD,
        {"torchdp": WHOLE, "pure-ldp": FLOATS, "multi-freq-ldpy": FLOATS, "opendp": LOCAL + "exact"},
        frequency(), **FREQUENCY,
    ),
    Row(
        "unary encoding", SHARES, CROWD, {"torchdp": WHOLE, "pure-ldp": FLOATS, "multi-freq-ldpy": FLOATS},
        frequency(unary=True), **FREQUENCY,
    ),
    Row(
        "subset selection", SHARES, CROWD, {"torchdp": WHOLE, "multi-freq-ldpy": FLOATS},
        frequency(subset=34), **{**FREQUENCY, "quick": {"n": 2_000}},
    ),
    Row(
        "Hadamard response", SHARES, CROWD, {"torchdp": WHOLE, "pure-ldp": FLOATS}, frequency(),
        warm={"n": 200}, quick=FEW,
    ),
    Row(
        "Gaussian calibration", "sigma over the least one, less 1", TOTAL,
        {
            **dict.fromkeys(("torchdp", "dp-accounting", "diffprivlib", "autodp"), CURATOR),
            "opendp": "curator; by zCDP, rounded upwards",
        },
        calibration, "delta over 1e-6", 1.0, 1e-9, {"epsilon": 0.9},
    ),
    Row(
        "noisy integers", "standard deviation of 100,000 at (1, 1e-6)", {**TOTAL, "n": 100_000},
        {
            "torchdp": "curator; rounded, its distance stated", "opendp": "curator; exact",
            "diffprivlib": "curator; floating-point chances",
        },
        noise, warm={"n": 200}, quick={"n": 1_000},
    ),
    Row(
        "prefix sums, mean", "RMSE of 128 sums at sensitivity 1", {"n": 128},
        CERTIFIED, strategy(worst=False), **RESIDUAL,
    ),
    Row(
        "prefix sums, max", "largest error of 64 sums at sensitivity 1", {"n": 64},
        CERTIFIED, strategy(worst=True), **RESIDUAL,
    ),
    Row(
        "semidefinite program", "largest error of 32 sums at sensitivity 1", {"n": 32},
        {"torchdp": "gap certified", "cvxpy": "to SCS's 1e-5"}, strategy(worst=True), **RESIDUAL,
    ),
    Row(
        "sampled sums", "epsilon at 1e-5 that 1,000 sampled sums are said to spend",
        {"multiplier": 1.1, "chance": 0.01, "times": 1000, "delta": 1e-5},
        {
            "torchdp": "by dp-accounting's distributions", "dp-accounting": "upper bound",
            "prv-accountant": "upper end of its interval", "opacus": "its PRV accountant",
        },
        number, warm={"times": 10}, quick={"times": 20},
    ),
    Row(
        "ridge", "loss over the least loss, less 1", {"n": 100_000, "d": 10, "epsilon": 0.5, "delta": 1e-6},
        {
            "torchdp": "no curator; (0.5, 1e-6)", "diffprivlib": "curator; (0.5, 0)",
            "scikit-learn": "no privacy: the floor",
        },
        regression, warm={"n": 2_000}, quick={"n": 2_000},
    ),
    Row(
        "1e9 users at once", "RMSE of 128 raw shares of 1e9 users by randomized response", {**CROWD, "n": 10**9},
        {"torchdp": LOCAL + "a simulation", "numpy": LOCAL + "a simulation, by hand"},
        against(lambda k, **settings: side.likely(k)), quick={"k": 16},
    ),
    Row(
        "thresholds", "RMSE of 64 shares of users up to a threshold, ten times", {"n": 20_000, "k": 64, "epsilon": 1.0},
        {"torchdp": WHOLE + "; its choice is in the time", "pure-ldp": FLOATS + "; unary encoding, summed up"},
        against(cumulative), warm={"n": 200, "k": 4}, quick=FEW,
    ),
    Row(
        "PrivUnit", "RMSE of the mean of 5,000 unit vectors, d = 256", {"n": 5_000, "d": 256, "epsilon": 1.0},
        {"torchdp": LOCAL + "rounded, its distance stated"},
        against(lambda n, d, **settings: side.spheres(n, d).mean(0)), warm={"n": 20}, quick={"n": 50},
    ),
    Row(
        "four epochs", "RMSE of 128 sums, everyone in every 32nd step", {"n": 128, "epochs": 4},
        CERTIFIED, strategy(worst=False), **{**RESIDUAL, "quick": {"n": 16}},
    ),
    Row(
        "768 shuffled bits", "deviation of one of 768 sums of bits, Poisson noise",
        {"users": 100_000, "epsilon": 2.0, "delta": 1e-6, "instances": 768},
        {"torchdp": "a shuffler; certified", "dp-accounting": "a shuffler; bisection by its distributions"},
        bits, "delta over 1e-6", 1.0, 1e-2, {"instances": 8},
    ),
    Row(
        "one clipped step", "relative error of the sum of 256 clipped gradients, two layers",
        {"n": 256, "d": 784, "hidden": 256, "classes": 10, "bound": 1.0},
        {"torchdp": "float32; short of the bound by what is rounded", "opacus": "float32"},
        clipped, "norm over bound", 1.0, 2**-23, quick={"n": 8, "d": 16, "hidden": 8},
    ),
    Row(
        "consistent marginals", "RMSE of 192 noisy counts of 10,000 people, made consistent",
        {"n": 10_000, "size": 8, "sigma": 20.0},
        {"torchdp": "nearest histogram", "mbi": "mirror descent on a graphical model"},
        consistent, "difference over n", 0.0, 1e-6, quick={"size": 3},
    ),
)  # fmt: skip
PEERS = {
    "pure-ldp": Peer(
        ("pure-ldp scikit-learn statsmodels",), "local frequency oracles, one user at a time"
    ),
    "multi-freq-ldpy": Peer(("multi-freq-ldpy",), "local frequencies of several attributes"),
    "opendp": Peer(("opendp numpy",), "hardened releases with proofs"),
    "dp-accounting": Peer(("dp-accounting",), "accounting of compositions"),
    "diffprivlib": Peer(("diffprivlib scikit-learn<1.7",), "scikit-learn models with a curator"),
    "autodp": Peer(("autodp",), "accounting by privacy profiles"),
    "prv-accountant": Peer(("prv-accountant",), "accounting of sampled sums"),
    "jax-privacy": Peer(("jax-privacy",), "correlated noise for training"),
    "opacus": Peer(("torch==2.13.0", "--no-deps opacus", "opt_einsum scipy"), "DP-SGD in PyTorch"),
    "cvxpy": Peer(("cvxpy scs",), "convex programs of any kind"),
    "scikit-learn": Peer(("scikit-learn",), "learning without privacy"),
    "numpy": Peer(("numpy",), "arrays; the law of the reports by hand"),
    "mbi": Peer(("mbi",), "graphical models of noisy marginals"),
}
ABSENT = {  # not run, and why
    "HDMM, google-research/federated": "repositories that need packages of 2022; experiments/factorization/solvers.py",
    "workload mechanisms of McKenna et al.": "a repository; experiments/league/local_accuracy.py has the formula",
    "ldp-toolbox": "brings a web application of a gigabyte; experiments/league/local_accuracy.py has its oracles",
    "ml-projunit": "a checkout, no package",
    "opake": "wants Python 3.13",
    "correlated-noise-mechanism": "5 GB for what jax-privacy and opacus do here",
}
SIDES = Path(__file__).with_name("sides")


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/run.py")
