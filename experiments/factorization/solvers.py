"""Solvers of the factorization norms side by side: iterations, CPU seconds, certified gap.

Papers: Edmonds, Nikolov, Ullman (2020); peers as named.
Command:  python experiments/factorization/solvers.py
Expected: the accelerated fixed point reaches gap 1e-6 on prefix sums 256 in at most half the plain iteration's
    iterations, on all ranges of [64] in at most 400, and prefix sums 1024 to 1e-4 at least 3 times faster.
Every row is judged by factorization.certify; CPU seconds of one thread, from call to return (compilation included).
Peers that are not installed are named as missing: cvxpy (SCS, Clarabel), jax-privacy (dense.optimize, whose strategy C
    is completed to L = W C^+; the lower bound is then the accelerated solver's).
Time: about 11 minutes on one core; --smoke in seconds.
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import certify, gradient
from torchdp.factorization.fixed_point import solve

MEMORY = 8  # updates that the acceleration combines: the solver's default


def plain(W: Tensor, tol: float, step: float, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """The unaccelerated iteration in its simplest form: one SVD of the whole matrix each time."""
    m, n = W.shape
    c, P = torch.full((m,), 1 / m, dtype=W.dtype), torch.full((n,), 1 / n, dtype=W.dtype)
    lower, upper, best = 0.0, math.inf, None
    iteration = 0
    while iteration < most:
        iteration += 1
        U, S, Vh = torch.linalg.svd(c.sqrt()[:, None] * W * P.sqrt(), full_matrices=False)
        a, b = (U.square() * S).sum(1) / c, (Vh.square() * S[:, None]).sum(0) / P
        value = float((a.max() * b.max()).sqrt())
        if float(S.sum()) > lower:
            lower, weights = float(S.sum()), (c, P)
        if value < upper:
            upper = value
            best = (U * S.sqrt() / c.sqrt()[:, None], S.sqrt()[:, None] * Vh / P.sqrt())
        if upper <= lower * (1 + tol):
            break
        c, P = c * (a / S.sum()) ** step, P * (b / S.sum()) ** step
        c, P = (c / c.sum()).clamp_min(1e-14), (P / P.sum()).clamp_min(1e-14)
    return *best, *weights, iteration


def fixed_point(W: Tensor, tol: float, memory: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    found = solve(W, tol=tol, memory=memory)
    return found.left, found.right, found.row_weights, found.column_weights, found.iterations


def by_gradient(W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    found = gradient(W)
    return found.left, found.right, found.row_weights, found.column_weights, found.iterations


def by_cvxpy(W: Tensor, solver: str, **settings: float) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
    """min t, Z PSD with off-diagonal block W and diagonal <= t; weights from the diagonal's multipliers."""
    import cvxpy as cp

    m, n = W.shape
    Z, t = cp.Variable((m + n, m + n), PSD=True), cp.Variable()
    diagonal = cp.diag(Z) <= t
    cp.Problem(cp.Minimize(t), [Z[:m, m:] == W.numpy(), diagonal]).solve(solver=solver, **settings)
    values, vectors = torch.linalg.eigh(torch.from_numpy(Z.value))
    root = vectors * values.clamp_min(0).sqrt()
    weights = torch.from_numpy(diagonal.dual_value).clamp_min(0)
    return root[:m], root[m:].T, weights[:m], weights[m:], None


def by_jax_privacy(W: Tensor, reduction: str) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np
    from jax_privacy.matrix_factorization import dense

    def p_norm(errors, p=128):  # of the squared errors
        top = jax.lax.stop_gradient(errors.max())
        return top * jnp.mean((errors / top) ** p) ** (1 / p)

    reductions = {"mean": jnp.mean, "max": jnp.max, "p-norm 128": p_norm}
    strategy = dense.optimize(W.shape[1], A=jnp.asarray(W.numpy()), reduction_fn=reductions[reduction])
    C = torch.from_numpy(np.array(strategy)).double()
    _, _, c, P, _ = fixed_point(W, 1e-6, MEMORY)
    return W @ torch.linalg.pinv(C), C, c, P, None


def show(problem: str, name: str, W: Tensor, run: Callable[[], tuple]) -> None:
    start = time.process_time()
    try:
        left, right, c, P, iterations = run()
    except ImportError as error:
        print(f"{problem:<18}{name:<34}missing: {error.name}", flush=True)
        return
    seconds = time.process_time() - start
    certificate = certify(W, left, right, c, P)
    bounds = f"[{float(certificate.lower):.7f}, {float(certificate.upper):.7f}]"
    count = "" if iterations is None else iterations
    print(
        f"{problem:<18}{name:<34}{count!s:>7}{seconds:>9.2f} s{float(certificate.gap):>11.1e}  {bounds}",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    torch.set_num_threads(1)
    print(f"{'problem':<18}{'solver':<34}{'iter.':>7}{'CPU time':>11}{'gap':>11}  certified bounds")
    problems = [
        ("prefix 64", workloads.prefix(64), 1e-6, 10_000),
        ("prefix 256", workloads.prefix(256), 1e-6, 1_000),
    ]
    problems += [("all ranges 64", workloads.all_ranges(64), 1e-6, 8_000)]
    problems += [("prefix 1024", workloads.prefix(1024), 1e-4, 500)]
    problems += [("all ranges 256", workloads.all_ranges(256), 1e-3, 500)]
    if smoke:
        problems = [("prefix 16", workloads.prefix(16), 1e-6, 1_000)]
    for name, workload, tol, most in problems:
        W, small = workload.dense(), workload.shape[0] <= 64
        show(name, f"fixed point, to {tol:g}", W, lambda W=W, tol=tol: fixed_point(W, tol, MEMORY))
        show(name, "  without acceleration", W, lambda W=W, tol=tol: fixed_point(W, tol, 0))
        for step in (1.8, 1.0):
            run = lambda W=W, tol=tol, step=step, most=most: plain(W, tol, step, most)  # noqa: E731
            show(name, f"  plain SVD iteration, step {step:g}", W, run)
        if small:
            show(name, "gradient relaxation", W, lambda W=W: by_gradient(W))
            show(name, "cvxpy, SCS 1e-6", W, lambda W=W: by_cvxpy(W, "SCS", eps=1e-6, max_iters=20_000))
            show(name, "cvxpy, Clarabel", W, lambda W=W: by_cvxpy(W, "CLARABEL"))
        if workload.shape[0] <= 256:
            for reduction in ("mean", "max", "p-norm 128"):
                run = lambda W=W, reduction=reduction: by_jax_privacy(W, reduction)  # noqa: E731
                show(name, f"jax-privacy, {reduction}", W, run)


if __name__ == "__main__":
    main()
