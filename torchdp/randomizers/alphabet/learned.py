"""Strategy matrices as modules: learned by any optimisation, private at every step of it."""

import math

import torch
from torch import Tensor, nn

from torchdp import checks

EDGE = 1e-3  # a start's entries are kept this share of their range away from its ends, where the slope vanishes
SLACK = 1e-9  # of epsilon, left to rounding
LARGEST_EPSILON = 30.0
ROUNDS, CLOSE = 100, 1e-12  # of Newton's method, at most; its last step, whose error is its square


class LearnedStrategy(nn.Module):
    """A strategy matrix Q (m, k) with free parameters, epsilon-LDP whatever their values.

    Q[y, x] = z_y (1 + (e^epsilon - 1) sigmoid(logits[y, x] + shift_x)): row y lies in [z_y, e^epsilon z_y]. shift_x is
    the one number that makes column x add up to 1; it exists since z = c softmax(weights) with e^-epsilon < c < 1, and
    its gradient is the implicit function's. So any optimizer and any loss will do: no projection, no penalty.

    start: (m, k), positive, columns that add up to 1, such as the matrix of ``StrategyMatrix.tuned``; entries at the
    ends of their range are moved a little inward. epsilon: at least start's own, at most 30. Parameters, float64:
    logits (m, k), weights (m,), level (), the logit of (c - e^-epsilon)/(1 - e^-epsilon). The randomizer that they
    stand for is ``StrategyMatrix(learned().detach())``. Raises TypeError, ValueError.

    Guarantees: a report drawn from a column of Q is epsilon-LDP, whatever the parameters; they must not be fitted to
        data of the users who report.
    Source: the polytope of McKenna, Maity, Mazumdar, Miklau (2020), section 4, in coordinates without constraints.
    """

    def __init__(self, start: Tensor, epsilon: float) -> None:
        super().__init__()
        Q, epsilon = checks.matrix("start", start).detach().double(), checks.positive("epsilon", epsilon)
        if Q.ndim != 2 or not bool((Q > 0).all()):
            raise ValueError(f"start must be one positive matrix (outputs, types), not of shape {tuple(Q.shape)}")
        own = float((Q.amax(1) / Q.amin(1)).log().max())
        if not own * (1 - SLACK) <= epsilon <= LARGEST_EPSILON:
            raise ValueError(f"epsilon must lie between start's own, {own:g}, and 30, not {epsilon!r}")
        self.epsilon = epsilon
        growth, least = self._growth, math.exp(-epsilon)
        z = (Q.amin(1) * Q.amax(1) / (1 + growth)).sqrt()  # a row in the middle of its range
        share = ((Q / z[:, None] - 1) / growth).clamp(EDGE, 1 - EDGE)
        level = min(max((float(z.sum()) - least) / (1 - least), EDGE), 1 - EDGE)
        self.logits = nn.Parameter(share.logit())
        self.weights = nn.Parameter(z.log())
        self.level = nn.Parameter(Q.new_tensor(math.log(level / (1 - level))))

    @property
    def _growth(self) -> float:
        return math.expm1(self.epsilon * (1 - SLACK))

    def forward(self) -> Tensor:
        """Q, (m, k): positive, columns that add up to 1, rows whose largest ratio is at most e^epsilon."""
        least = 1 / (1 + self._growth)
        z = (least + (1 - least) * self.level.sigmoid()) * self.weights.softmax(0)
        shift = _Shift.apply(self.logits, z, self._growth)
        return z[:, None] * (1 + self._growth * (self.logits + shift).sigmoid())

    def extra_repr(self) -> str:
        """What ``print`` shows of the module."""
        return f"outputs={len(self.logits)}, types={self.logits.shape[1]}, epsilon={self.epsilon:g}"


class _Shift(torch.autograd.Function):
    """shift (k,) with sum_y z_y (1 + growth sigmoid(logits_y + shift)) = 1, by Newton's method inside a bracket."""

    @staticmethod
    def forward(ctx, logits: Tensor, z: Tensor, growth: float) -> Tensor:
        low, high = -40 - logits.amax(0), 40 - logits.amin(0)
        target, shift = (1 - z.sum()) / growth, (low + high) / 2
        for _ in range(ROUNDS):
            share = (logits + shift).sigmoid()
            excess = z @ share - target
            low, high = torch.where(excess < 0, shift, low), torch.where(excess > 0, shift, high)
            step = shift - excess / (z @ (share * (1 - share))).clamp_min(torch.finfo(z.dtype).tiny)
            moved = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
            near, shift = bool(((moved - shift).abs() <= CLOSE * (1 + shift.abs())).all()), moved
            if near:
                break
        ctx.save_for_backward(logits, z, shift)
        ctx.growth = growth
        return shift

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        logits, z, shift = ctx.saved_tensors
        share = (logits + shift).sigmoid()
        slopes = z[:, None] * share * (1 - share)  # (m, k)
        each = gradient / slopes.sum(0)
        return -slopes * each, -(share + 1 / ctx.growth) @ each, None


def answer_variances(Q: Tensor, W: Tensor, prior: Tensor | None = None) -> Tensor:
    """Variance of one user's part in each answer, for each type, with the best decoder: (q, k), with gradients.

    V = W (Q^T D^{-1} Q)^{-1} Q^T D^{-1}, D = diag(Q prior), is unbiased and of least variance under ``prior``; the
    variance is sum_y V_iy^2 Q[y, x] - W_ix^2. ``StrategyMatrix.workload_variance``, but a function of Q and prior.

    Q: (m, k), positive, of rank k; W: (q, k); prior: (k,), positive, uniform where None. Raises TypeError, ValueError.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), optimal reconstruction.
    """
    Q, W = checks.matrix("Q", Q), checks.matrix("W", W)
    Q = Q.to(torch.promote_types(Q.dtype, torch.float32))
    if Q.ndim != 2 or W.ndim != 2 or W.shape[1] != Q.shape[1] or not bool((Q > 0).all()):
        raise ValueError(f"Q must be one positive matrix, W (queries, {Q.shape[-1]}), not {tuple(W.shape)}")
    k = Q.shape[1]
    prior = Q.new_full((k,), 1 / k) if prior is None else checks.shares("prior", prior, k, positive=True).to(Q)
    scaled = Q / (Q @ prior)[:, None]  # D^{-1} Q
    triangle, failed = torch.linalg.cholesky_ex(Q.mT @ scaled)
    pivots = triangle.diagonal()
    hidden = math.sqrt(50 * torch.finfo(Q.dtype).eps) * pivots.max()  # by rounding, where it is a zero
    if bool(failed) or bool(pivots.min() <= hidden):
        raise ValueError(f"Q must have rank {k}: its columns must be linearly independent")
    V = torch.cholesky_solve(W.to(Q).mT, triangle).mT @ scaled.mT
    return V.square() @ Q - W.to(Q).square()
