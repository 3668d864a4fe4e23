"""Approximate factorizations under a rank cap, by gradient descent."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.descent import Adam, cosine
from torchdp.factorization.rank import LowRankFactorization, measure
from torchdp.factorization.relaxation import LowRankRelaxation, smooth_log_norm
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
def low_rank(
    W: Tensor, rank: int, alpha: float, *, steps: int = 1000, learning_rate: float = 0.01
) -> LowRankFactorization:
    """An approximate factorization of small norm and rank at most ``rank``: abs(W - L R) <= alpha where it gets there.

    Trains :class:`LowRankRelaxation` by Adam on :func:`smooth_log_norm`, whose sharpness grows from 4 to 4000, over its
    starting value, plus the augmented Lagrangian of the bounds -alpha <= (W - L R)_ij <= alpha,
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
            return torch.where(distortion <= alpha, -1 / _norm(left, right), distortion)

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


def _norm(left: Tensor, right: Tensor) -> Tensor:
    return left.norm(dim=-1).amax(-1) * right.norm(dim=-2).amax(-1)
