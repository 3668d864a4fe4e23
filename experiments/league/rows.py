"""The league's rows: the same work at the same privacy, who does it, and how every answer is judged alike."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sides import side

Verdict = dict[str, float | None]  # error; mended: of shares clipped and normalised; seen: of the guarantee


@dataclass(frozen=True)
class Row:
    """error says what is counted, less is better; sides maps each side to its arithmetic and who is trusted.

    judge(answer, check, **settings) -> Verdict. seen names what the guarantee is checked by: it may be at most
    ``promised`` + ``slack``; "" where nothing is checked. warm, quick: settings of the first call and of a short run.
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
    """What pip installs, one call after another, into an environment of the peer's own; what it was built for."""

    installs: tuple[str, ...]
    purpose: str


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def frequency(subset: int = 1, unary: bool = False) -> Callable[..., Verdict]:
    """seen: the epsilon of the reports of n users who all hold type 0, whose sets have so many of the k types."""

    def judge(answer: dict, check: list | None, n: int, k: int, epsilon: float) -> Verdict:
        truth = np.bincount(side.crowd(n, k), minlength=k) / n
        raw = np.array(answer["raw"]) if "raw" in answer else None
        cut = np.maximum(raw, 0) if raw is not None else np.array(answer["mended"])
        seen = None
        if check is not None:
            own, other = check[0] / n, sum(check[1:]) / (k - 1) / n
            odds = other / (1 - other) if unary else subset / (k - subset)
            seen = math.log(own / (1 - own) / odds)
        error = None if raw is None else rms(raw - truth)
        return {"error": error, "mended": rms(cut / cut.sum() - truth), "seen": seen}

    return judge


def log_share(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def delta_of(sigma: float, epsilon: float) -> float:
    """Balle, Wang (2018), Theorem 8, at sensitivity 1."""
    half, shift = 1 / (2 * sigma), epsilon * sigma
    return log_share(half - shift) - math.exp(epsilon) * log_share(-half - shift)


def calibration(sigma: float, check: None, epsilon: float, delta: float) -> Verdict:
    low, high = 1e-3, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_of(middle, epsilon) > delta else (low, middle)
    return {"error": sigma / high - 1, "mended": None, "seen": delta_of(sigma, epsilon) / delta}


def noise(values: list, check: None, **settings: float) -> Verdict:
    return {"error": float(np.std(values)), "mended": None, "seen": None}


def strategy(worst: bool) -> Callable[..., Verdict]:
    """seen: what decoding leaves of the queries; the error is computed at the strategy's own sensitivity."""

    def judge(C: list, check: None, n: int) -> Verdict:
        R, W = np.array(C), np.tri(n)
        L = W @ np.linalg.pinv(R, rcond=1e-12)
        rows = (L**2).sum(1)
        error = math.sqrt(rows.max() if worst else rows.mean()) * math.sqrt((R**2).sum(0).max())
        return {"error": error, "mended": None, "seen": float(np.abs(L @ R - W).max())}

    return judge


def number(value: float, check: None, **settings: float) -> Verdict:
    return {"error": value, "mended": None, "seen": None}


def regression(w: list, check: None, n: int, d: int, epsilon: float, delta: float) -> Verdict:
    X, y = side.table(n, d)
    least = np.linalg.lstsq(X, y, rcond=None)[0]
    error = (rms(X @ np.array(w) - y) / rms(X @ least - y)) ** 2 - 1
    return {"error": error, "mended": None, "seen": None}


CROWD: dict[str, Any] = {"n": 20_000, "k": 128, "epsilon": 1.0}
FEW: dict[str, Any] = {"n": 2_000, "k": 16}
SHARES, TOTAL = "RMSE of 128 raw shares", {"epsilon": 1.0, "delta": 1e-6}
LOCAL = "nobody trusted; "
FLOATS, WHOLE = LOCAL + "floating-point chances", LOCAL + "integer chances, system's cipher"
FREQUENCY: dict[str, Any] = {"seen": "epsilon", "promised": 1.0, "slack": 0.15, "warm": {"n": 200}, "quick": FEW}
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
            "torchdp": "curator; real numbers", "dp-accounting": "curator; real numbers",
            "diffprivlib": "curator; real numbers", "autodp": "curator; real numbers",
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
        {"torchdp": "gap certified", "jax-privacy": "no certificate"},
        strategy(worst=False), "residual", 0.0, 1e-7, quick={"n": 8},
    ),
    Row(
        "prefix sums, max", "largest error of 64 sums at sensitivity 1", {"n": 64},
        {"torchdp": "gap certified", "jax-privacy": "no certificate"},
        strategy(worst=True), "residual", 0.0, 1e-7, quick={"n": 8},
    ),
    Row(
        "semidefinite program", "largest error of 32 sums at sensitivity 1", {"n": 32},
        {"torchdp": "gap certified", "cvxpy": "to SCS's 1e-5"},
        strategy(worst=True), "residual", 0.0, 1e-7, quick={"n": 8},
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
)  # fmt: skip
PEERS = {
    "pure-ldp": Peer(("pure-ldp scikit-learn statsmodels",), "local frequency oracles, one user at a time"),
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
}
ABSENT = {  # not measured yet, and why
    "1e9 users at once": "no peer has such a path; experiments/bench/oracles.py measures ours",
    "PrivUnitG": "its authors' code is a repository, not a package",
    "thresholds by the best local strategy": "experiments/league/local_accuracy.py, from published formulas",
    "four epochs": "experiments/training/epochs.py",
    "768 shuffled bit sums": "experiments/density; no package does them",
    "one clipped training step": "opacus and opake, not written",
    "noisy marginals made consistent": "mbi, not written",
    "opake": "does not import on Python 3.11 and 3.12",
}
SIDES = Path(__file__).with_name("sides")
