"""Descent on the entries of a strategy matrix: its gradient is written out, as k is small.

Notation: Q, (m, k), z_y its least entry of row y; p, (k,), the decoder's prior; W, (r, k), the
queries. d = Q p, S = D^{-1} Q, D = diag(d); M = Q^T S; U = M^{-1} W^T; V = S U, (m, r), is the best
decoder's transpose; the variance of one user's part in answer i is f_ix = sum_y V_yi^2 Q_yx - W_ix^2.
"""

import math

import torch
from torch import Tensor

from torchdp.descent import Adam
from torchdp.protocol import Objective

# Adam's at first; it falls in a straight line, to LAST of it. Smaller ones end in worse local
# minima.
LEARNING_RATE = 0.5
LAST = 0.02

# Adam's of the mean gradient and of its square.
MOMENTS = (0.8, 0.95)

# Relative temperatures of the smooth maximum.
SOFTEST = 0.1
SHARPEST = 1e-3

# Newton's steps towards the shifts in one step of the descent, and how long one may be: entries at
# the ends of their range have no slope.
TRACKED = 2
LONGEST = 2.0

# Of a triangle's pivots, the largest: what rounding makes of a pivot that is 0.
PIVOT = math.sqrt(50 * torch.finfo(torch.float64).eps)

# A slope where all entries are at the ends of their range.
TINY = 1e-300

# Of Newton's method inside a bracket, at most; its last step, whose error is its square.
ROUNDS = 100
CLOSE = 1e-7


def least_entries(weights: Tensor, level: Tensor, growth: float) -> tuple[Tensor, Tensor]:
    """z, (m,), and its sum, from e^-epsilon to 1, (): of a strategy's parameters."""
    least = 1 / (1 + growth)
    total = least + (1 - least) * level.sigmoid()
    return total * weights.softmax(0), total


def column_shift(logits: Tensor, z: Tensor, growth: float, start: Tensor) -> Tensor:
    """shift (k,) with sum_y z_y (1 + growth sigmoid(logits_y + shift)) = 1.

    By Newton's method inside a bracket.
    """
    low = -40 - logits.amax(0)
    high = 40 - logits.amin(0)
    tiny = torch.finfo(z.dtype).tiny
    target = (1 - z.sum()) / growth
    shift = start.maximum(low).minimum(high)
    for _ in range(ROUNDS):
        share = (logits + shift).sigmoid()
        excess = z @ share - target
        slope = z @ (share * (1 - share))
        low = torch.where(excess < 0, shift, low)
        high = torch.where(excess > 0, shift, high)
        newton = shift - excess / slope.clamp_min(tiny)
        inside = (newton >= low) & (newton <= high)
        moved = torch.where(inside, newton, (low + high) / 2)
        close = (moved - shift).abs() <= CLOSE * (1 + shift.abs())
        shift = moved
        if bool(close.all()):
            break
    return shift


class Variances:
    """f and its gradient at one Q and p.

    Args:
        Q: (m, k), positive.
        prior: p, (k,), positive, of sum 1.
        W: (r, k).
        added: f summed over the queries, (1, k), in the place of (r, k).
    """

    def __init__(self, Q: Tensor, prior: Tensor, W: Tensor, added: bool) -> None:
        self.Q = Q
        self.prior = prior
        self.d = (Q @ prior)[:, None]
        self.S = Q / self.d
        self.triangle, _ = torch.linalg.cholesky_ex(Q.mT @ self.S)
        # A pivot that is 0, or below for rounding, or no number.
        low, high = self.triangle.diagonal().aminmax()
        self.of_full_rank = bool(low > PIVOT * high)
        self.U = torch.cholesky_solve(W.mT, self.triangle)
        self.V = self.S @ self.U
        squares = self.V.square()
        answers = W.square()
        if added:
            squares = squares.sum(1, keepdim=True)
            answers = answers.sum(0, keepdim=True)
        self.squares = squares
        self.values = torch.addmm(answers, squares.mT, Q, beta=-1)

    def gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Of sum_ix weights_ix f_ix by Q, (m, k), and by p, (k,); weights of the shape of f.

        With G the derivative by V: dV = dS U + S dU and dU = -M^{-1} dM U, where dM = dQ^T S +
        Q^T dS; so by S it is B = G U^T - Q H, H = M^{-1} S^T G U^T, and S depends on Q and on d.
        """
        G = (self.Q @ (2 * weights).mT) * self.V
        outer = G @ self.U.mT
        H = torch.cholesky_solve(self.S.mT @ outer, self.triangle)
        B = torch.addmm(outer, self.Q, H, alpha=-1) / self.d
        by_d = (B * self.S).sum(1)
        by_Q = torch.addmm(B, self.squares, weights)
        by_Q = by_Q.addmm_(self.S, H.mT, alpha=-1).addr_(by_d, self.prior, alpha=-1)
        return by_Q, -(by_d @ self.Q)


class Descent:
    """Adam on the parameters of a ``LearnedStrategy``, and for the worst type on the decoder's prior.

    Q_yx = z_y (1 + growth share_yx), share = sigmoid(logits + shift), z as of ``least_entries``.

    Args:
        logits: (m, k).
        weights: (m,).
        level: ().
        heights: (k,), the logarithms of the decoder's prior; kept where ``prior`` is given.
        growth: e^epsilon - 1.
        W: (r, k).
        prior: (k,), or None for the worst type.
        objective: the variances are added up over the rows of W, or for the worst of them.
    """

    def __init__(
        self,
        logits: Tensor,
        weights: Tensor,
        level: Tensor,
        heights: Tensor,
        growth: float,
        W: Tensor,
        prior: Tensor | None,
        objective: Objective,
    ) -> None:
        parts = (logits, weights, level, heights)
        flat = torch.cat([part.flatten() for part in parts])
        # Views: a step on the flat parameters moves all of them.
        views = flat.split([part.numel() for part in parts])
        self.logits = views[0].view_as(logits)
        self.weights = views[1]
        self.level = views[2].view_as(level)
        self.heights = views[3]
        self.growth = growth
        self.W = W
        self.prior = prior
        self.added = objective is Objective.MEAN
        self.adam = Adam([flat], MOMENTS)
        # Later ones are near the last, as parameters move little.
        z, _ = least_entries(self.weights, self.level, growth)
        self.shift = column_shift(self.logits, z, growth, W.new_zeros(W.shape[1]))

    def decoders_prior(self) -> Tensor:
        return self.heights.softmax(0) if self.prior is None else self.prior

    def run(self, steps: int) -> None:
        """Steps down the variance, or a smooth maximum of several that sharpens.

        It ends early where Q leaves the matrices of full rank, or numbers overflow.
        O(steps m k (k + r)).
        """
        for step in range(steps):
            share = step / steps
            # At its sharpest for the last fifth of the steps.
            temperature = SOFTEST * (SHARPEST / SOFTEST) ** min(1.0, 1.25 * share)
            gradient = self._gradient(temperature)
            if gradient is None or not bool(gradient.isfinite().all()):
                return
            self.adam.move([gradient], LEARNING_RATE * max(LAST, 1 - share))

    def _gradient(self, temperature: float) -> Tensor | None:
        """By all parameters, flat; None where Q has a rank below k."""
        growth = self.growth
        z, total = least_entries(self.weights, self.level, growth)
        column = z[:, None]
        self._track(z, (1 - total) / growth)
        share = (self.logits + self.shift).sigmoid()
        factor = growth * share + 1
        decoders = self.decoders_prior()
        variances = Variances(column * factor, decoders, self.W, self.added)
        if not variances.of_full_rank:
            return None
        by_Q, by_decoders = variances.gradient(self._weights(variances.values, temperature))
        # Columns add up to 1: what a change of an entry does to its column's shift is taken off.
        slope = (share - share.square()) * column
        by_Q -= (by_Q * slope).sum(0) / slope.sum(0).clamp_min_(TINY)
        by_z = (factor * by_Q).sum(1)
        by_total = z @ by_z / total
        by_heights = torch.zeros_like(decoders)
        if self.prior is None:
            by_heights = decoders * (by_decoders - decoders @ by_decoders)
        by_logits = growth * slope * by_Q
        level = self.level.sigmoid()
        by_level = growth / (1 + growth) * level * (1 - level) * by_total
        by_weights = z * (by_z - by_total)
        return torch.cat([by_logits.flatten(), by_weights, by_level[None], by_heights])

    def _track(self, z: Tensor, target: Tensor) -> None:
        """Shifts nearer to those with sum_y z_y share_y = target, which the last step moved.

        The descent goes as far as with the shifts themselves, in half of the time.
        """
        for _ in range(TRACKED):
            share = (self.logits + self.shift).sigmoid()
            slope = z @ (share - share.square())
            move = (z @ share - target) / slope.clamp_min_(TINY)
            self.shift = self.shift - move.clamp_(-LONGEST, LONGEST)

    def _weights(self, values: Tensor, temperature: float) -> Tensor:
        """The gradient of temperature log sum exp(v/(max(v) temperature)) by the variances.

        v is what is judged: the variances of all types, or their mean under the prior.
        """
        if self.prior is None:
            largest = float(values.max())
            ratios = values.flatten() / (largest * temperature)
            return ratios.softmax(0).view(values.shape) / largest
        judged = values @ self.prior
        largest = float(judged.max())
        softmax = (judged / (largest * temperature)).softmax(0)
        return softmax[:, None] * (self.prior / largest)
