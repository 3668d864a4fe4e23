"""Factorization by gradient descent on the relaxations: exact at any p, and approximate under a rank cap."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.descent import Adam, cosine
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.rank import LowRankFactorization, measure
from torchdp.factorization.relaxation import LowRankRelaxation, Relaxation, smooth_log_norm
from torchdp.factorization.solvers.fixed_point import Solution, power_norm
from torchdp.factorization.solvers.stopping import working
from torchdp.threads import one_thread

MOST_STEPS = 10**6
SHARPNESS = 4.0, 4000.0  # of the smoothed maximum, first and last step
STIFFNESS = 10.0, 3000.0  # of the bound on the distortion, over the number of entries, first and last step
MULTIPLIER_EVERY = 10  # steps of Adam between two updates of the multipliers
# Their sum at most. It is what missing alpha by one alpha costs, in units of the starting norm; where the rank does not
# bind, gamma_2(W; alpha) is convex in alpha and ends at 0, so the true sum is at most gamma_2(W) over that norm.
MOST_MULTIPLIERS = 10.0
MARGIN = 0.995  # share of alpha aimed at, because a penalty ends a little outside


@one_thread
def gradient(
    W: Tensor,
    p: float = math.inf,
    *,
    steps: int = 1000,
    learning_rate: float = 0.01,
    rank: int | None = None,
) -> Factorization:
    """A factorization W = L R of small norm, by Adam on a smoothed objective, with its certificate.

    Trains :class:`Relaxation` at alpha = 0, so L R = W at every step, on :func:`smooth_log_norm`, whose sharpness t
    grows from 4 to 4000 geometrically, s = min(t, p/2). The learning rate falls like a cosine. With a_i = ||L_i||^2 and
    b_j = ||R_j||^2 the dual weights a^{s-1} and b^{t-1} are the objective's gradient in a and b, and cost nothing;
    the factors of least norm are kept, with the weights of the last ones.

    W: (*batch, m, n), real; each problem of the batch goes its own way. p: in [2, inf]. rank: the largest
    number of rows of R allowed; less than rank(W) is refused (:func:`low_rank` takes it). The factors follow W's
    dtype and device, the work is in float64. It draws nothing at random and promises no gap: read ``certificate.gap``.

    Raises ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Kingma, Ba (2015) for Adam; the dual weights by Nikolov, Tang (2023), Theorem 26.
    """
    p = check_exponent(p)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    learning_rate = checks.positive("learning_rate", learning_rate)
    W = working("W", checks.matrix("W", W).detach(), stacklevel=4)
    with torch.inference_mode(False), torch.enable_grad():
        module = Relaxation(W.double().clone())
        q = module.T.shape[-1]
        if rank is not None and checks.integer("rank", rank, 1) < q:
            raise ValueError(
                f"rank must be at least the rank of W, {q}, not {rank}: below it no exact factorization exists"
            )

        def loss(left: Tensor, right: Tensor, step: int) -> Tensor:
            return smooth_log_norm(left, right, _between(SHARPNESS, step / steps), p)

        left, right = _descend(module, loss, lambda left, right: _norm(left, right, p), steps, learning_rate)
        last_left, last_right = (factor.detach() for factor in module())
    c = _weights(last_left.square().sum(-1), min(SHARPNESS[1], p / 2))
    P = _weights(last_right.square().sum(-2), SHARPNESS[1])
    return finish(W, Solution(left, right, None, c, P, P, steps), p)


@one_thread
def low_rank(
    W: Tensor, rank: int, alpha: float, *, steps: int = 1000, learning_rate: float = 0.01
) -> LowRankFactorization:
    """An approximate factorization of small norm and rank at most ``rank``: abs(W - L R) <= alpha where it gets there.

    Trains :class:`LowRankRelaxation` as :func:`gradient` does, on the smoothed norm over its starting value plus the
    augmented Lagrangian of the bounds -alpha <= (W - L R)_ij <= alpha,
        rho/2 sum_ij dist^2((W - L R)_ij / alpha + y_ij / rho, [-1, 1]),
    the multipliers y moved every 10 steps and kept to sum abs(y) <= 10, rho growing. Kept are, of the factors within
    alpha, those of least norm; where there are none, those of least distortion, and it warns.

    W: (*batch, m, n), real. rank: at least 1. alpha: a number > 0, in W's units, the same for the whole batch.
    The factors follow W's dtype and device, the work is in float64; nothing is drawn at random. Below full rank the
    problem is not convex: the norm is an upper bound, with no claim that it is least.

    Warns (RuntimeWarning) where the distortion stays above alpha. Raises ValueError or TypeError on bad arguments.

    Guarantees: distortion = max abs(W - L R) and norm are recomputed in float64 from the factors returned.
    Source: Ghazi et al. (2023), Lemma 12, for the problem; Rockafellar (1974) for the augmented Lagrangian.
    """
    alpha = checks.positive("alpha", alpha)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    learning_rate = checks.positive("learning_rate", learning_rate)
    W = working("W", checks.matrix("W", W).detach(), stacklevel=4)
    with torch.inference_mode(False), torch.enable_grad():
        exact = W.double().clone()
        module = LowRankRelaxation(exact, rank)
        with torch.no_grad():
            left, right = module()
            start = smooth_log_norm(left, right, SHARPNESS[1])
        bounds = _Bounds(exact, alpha)

        def loss(left: Tensor, right: Tensor, step: int) -> Tensor:
            norm = smooth_log_norm(left, right, _between(SHARPNESS, step / steps)) - start
            return norm.exp() + bounds.penalty(left, right, step, _between(STIFFNESS, step / steps))

        def score(left: Tensor, right: Tensor) -> Tensor:
            distortion = (exact - left @ right).abs().amax((-2, -1))
            return torch.where(distortion <= alpha, -1 / _norm(left, right, math.inf), distortion)

        left, right = _descend(module, loss, score, steps, learning_rate)
    found = measure(W, left.to(W.dtype), right.to(W.dtype))
    rounding = 16 * torch.finfo(W.dtype).eps * W.double().abs().amax((-2, -1))
    if bool((found.distortion > alpha + rounding).any()):
        warnings.warn(
            f"rank {rank} came within {float(found.distortion.max()):.3g} of W, not within alpha = {alpha:.3g}; "
            "raise rank, alpha or steps",
            RuntimeWarning,
            stacklevel=3,
        )
    return found


class _Bounds:
    """The augmented Lagrangian of -alpha <= (W - L R)_ij <= alpha, see :func:`low_rank`; W (*batch, m, n)."""

    def __init__(self, W: Tensor, alpha: float) -> None:
        self.W, self.aim, self.multipliers = W, MARGIN * alpha, torch.zeros_like(W)

    def penalty(self, left: Tensor, right: Tensor, step: int, stiffness: float) -> Tensor:
        """(*batch), differentiable in the factors; moves the multipliers every MULTIPLIER_EVERY steps."""
        rho = stiffness / (self.W.shape[-2] * self.W.shape[-1])
        place = (self.W - left @ right) / self.aim + self.multipliers / rho
        outside = place - place.clamp(-1, 1)
        if step % MULTIPLIER_EVERY == 0:
            y = rho * outside.detach()
            total = y.abs().sum((-2, -1), keepdim=True)
            self.multipliers.copy_(y * (MOST_MULTIPLIERS / total.clamp_min(MOST_MULTIPLIERS)))
        return rho / 2 * outside.square().sum((-2, -1))


def _descend(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor, int], Tensor],
    score: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    learning_rate: float,
) -> tuple[Tensor, Tensor]:
    """The factors of lowest score that Adam meets, each problem of a batch on its own; loss and score are (*batch)."""
    adam = Adam(module.parameters(), betas=(0.9, 0.99))
    best: tuple[Tensor, ...] = ()
    for step in range(steps + 1):
        left, right = module()
        with torch.no_grad():
            value = score(left, right)
            if not best:
                best = value, left.clone(), right.clone()
            better = value < best[0]
            each = better[..., None, None]
            chosen = (better, value), (each, left), (each, right)
            best = tuple(torch.where(*pair, old) for pair, old in zip(chosen, best, strict=True))
        if step < steps:
            adam.step(loss(left, right, step).sum(), cosine(learning_rate, step, steps))
    return best[1], best[2]


def _between(ends: tuple[float, float], done: float) -> float:
    """From the first end to the last, geometrically."""
    return ends[0] * (ends[1] / ends[0]) ** done


def _norm(left: Tensor, right: Tensor, p: float) -> Tensor:
    return power_norm(left.norm(dim=-1), p) * right.norm(dim=-2).amax(-1)


def _weights(values: Tensor, exponent: float) -> Tensor:
    top = values.amax(-1, keepdim=True)
    return (values / torch.where(top > 0, top, 1.0)) ** (exponent - 1)
