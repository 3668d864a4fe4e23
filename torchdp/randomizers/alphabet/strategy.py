"""Strategy matrices: any local randomizer with finitely many outputs, and the best unbiased decoder
for a workload.

Also as modules: learned by any optimisation, private at every step of it.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.descent import Adam
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Objective, Tally
from torchdp.randomizers.alphabet.chances import TOTAL, whole_table
from torchdp.randomizers.alphabet.frequency import StrategyOracle
from torchdp.randomizers.alphabet.randomized_response import HadamardResponse, RandomizedResponse
from torchdp.randomizers.alphabet.shift_strategy import ShiftStrategy
from torchdp.randomizers.alphabet.strategy_search import (
    gram_root,
    random_subsets,
    strategy_problem,
)
from torchdp.randomizers.base import exact_local

COLUMN_TOLERANCE = 1e-6  # a column sum further from 1 is taken for a mistake
# of two chances of one output, less 1: less would drown in the rounding of float64
LEAST_RATIO = 2.0**-30
# Adam's at first; it falls in a straight line, to LAST of it. Smaller ones end in worse local
# minima.
LEARNING_RATE = 0.5
LAST = 0.02
# logits of entries that count as being at an end of their range, and by how much they move on
EXTREME = 4.0
FARTHER = 20.0
SMALL = 40  # types up to which random starts do
USUAL_STEPS = 700
# under a prior: descents one after the other, each from the last one's rows, which are moved to the
# ends of their range: one per cent less error
DESCENTS = 3
FEW_STEPS = 300  # of more types, which start from shifts
SHARP = 2.5  # epsilon above which random starts may do better than shifts, beyond SMALL types
SHARPEST, SOFTEST = 1e-3, 0.1  # temperatures of the smooth maximum, relative
# of the largest entry of W; what is left of W beyond it is outside the row space
ROW_SPACE_TOLERANCE = 1e-8
# a start's entries are kept this share of their range away from its ends, where the slope vanishes
EDGE = 1e-3
SLACK = 1e-9  # of epsilon, left to rounding
LARGEST_EPSILON = 30.0
ROUNDS, CLOSE = 100, 1e-7  # of Newton's method, at most; its last step, whose error is its square


class LearnedStrategy(nn.Module):
    """A strategy matrix Q (m, k) with free parameters, epsilon-LDP whatever their values.

    Q[y, x] = z_y (1 + (e^epsilon - 1) sigmoid(logits[y, x] + shift_x)): row y lies in
    [z_y, e^epsilon z_y]. shift_x is the one number that makes column x add up to 1; it exists since
    z = c softmax(weights) with e^-epsilon < c < 1, and its gradient is the implicit function's. So
    any optimizer and any loss will do: no projection, no penalty.

    start: (m, k), positive, columns that add up to 1, such as the matrix of
    ``StrategyMatrix.tuned``; entries at the ends of their range are moved a little inward. epsilon:
    at least start's own, at most 30. Parameters, float64: logits (m, k), weights (m,), level (),
    the logit of (c - e^-epsilon)/(1 - e^-epsilon). The randomizer that they stand for is
    ``StrategyMatrix(learned().detach())``. Raises TypeError, ValueError.

    Guarantees: a report drawn from a column of Q is epsilon-LDP, whatever the parameters; they must
    not be fitted to
        data of the users who report.
    Source: the polytope of McKenna, Maity, Mazumdar, Miklau (2020), section 4, in coordinates
    without constraints.
    """

    def __init__(self, start: Tensor, epsilon: float) -> None:
        super().__init__()
        Q, epsilon = (
            checks.matrix("start", start).detach().double(),
            checks.positive("epsilon", epsilon),
        )
        if Q.ndim != 2 or not bool((Q > 0).all()):
            raise ValueError(
                f"start must be one positive matrix (outputs, types), not of shape {tuple(Q.shape)}"
            )
        own = float((Q.amax(1) / Q.amin(1)).log().max())
        if not own * (1 - SLACK) <= epsilon <= LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must lie between start's own, {own:g}, and 30, not {epsilon!r}"
            )
        self.epsilon = epsilon
        growth, least = self._growth, math.exp(-epsilon)
        z = (Q.amin(1) * Q.amax(1) / (1 + growth)).sqrt()  # a row in the middle of its range
        share = ((Q / z[:, None] - 1) / growth).clamp(EDGE, 1 - EDGE)
        level = min(max((float(z.sum()) - least) / (1 - least), EDGE), 1 - EDGE)
        self.logits = nn.Parameter(share.logit())
        self.weights = nn.Parameter(z.log())
        self.level = nn.Parameter(Q.new_tensor(math.log(level / (1 - level))))
        # where the search for the shifts begins: near the next ones, while parameters move a little
        self._last = Q.new_zeros(Q.shape[1])

    @property
    def _growth(self) -> float:
        return math.expm1(self.epsilon * (1 - SLACK))

    def forward(self) -> Tensor:
        """Q, (m, k): positive, columns that add up to 1, rows whose largest ratio is at most
        e^epsilon.
        """
        least = 1 / (1 + self._growth)
        z = (least + (1 - least) * self.level.sigmoid()) * self.weights.softmax(0)
        shift = _Shift.apply(self.logits, z, self._growth, self._last)
        self._last = shift.detach()
        return z[:, None] * (1 + self._growth * (self.logits + shift).sigmoid())


class _Shift(torch.autograd.Function):
    """shift (k,) with sum_y z_y (1 + growth sigmoid(logits_y + shift)) = 1, by Newton's method
    inside a bracket.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, z: Tensor, growth: float, start: Tensor) -> Tensor:
        low, high = -40 - logits.amax(0), 40 - logits.amin(0)
        target = (1 - z.sum()) / growth
        shift = start.maximum(low).minimum(high)
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
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, z, shift = ctx.saved_tensors
        share = (logits + shift).sigmoid()
        slopes = z[:, None] * share * (1 - share)  # (m, k)
        each = gradient / slopes.sum(0)
        return -slopes * each, -(share + 1 / ctx.growth) @ each, None, None


def answer_variances(Q: Tensor, W: Tensor, prior: Tensor | None = None) -> Tensor:
    """Variance of one user's part in each answer, for each type, with the best decoder: (q, k),
    with gradients.

    V = W (Q^T D^{-1} Q)^{-1} Q^T D^{-1}, D = diag(Q prior), is unbiased and of least variance under
    ``prior``; the variance is sum_y V_iy^2 Q[y, x] - W_ix^2. ``StrategyMatrix.workload_variance``,
    but a function of Q and prior.

    Q: (m, k), positive, of rank k; W: (q, k); prior: (k,), positive, uniform where None. Raises
    TypeError, ValueError.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), optimal reconstruction.
    """
    Q, W = checks.matrix("Q", Q), checks.matrix("W", W)
    Q = Q.to(torch.promote_types(Q.dtype, torch.float32))
    if Q.ndim != 2 or W.ndim != 2 or W.shape[1] != Q.shape[1] or not bool((Q > 0).all()):
        raise ValueError(
            f"Q must be one positive matrix, W (queries, {Q.shape[-1]}), not {tuple(W.shape)}"
        )
    k = Q.shape[1]
    prior = (
        Q.new_full((k,), 1 / k)
        if prior is None
        else checks.shares("prior", prior, k, positive=True).to(Q)
    )
    return _answer_variances(Q, W.to(Q), prior)


def _answer_variances(Q: Tensor, W: Tensor, prior: Tensor) -> Tensor:
    scaled = Q / (Q @ prior)[:, None]  # D^{-1} Q
    triangle, failed = torch.linalg.cholesky_ex(Q.mT @ scaled)
    pivots = triangle.detach().diagonal()
    # by rounding, where it is a zero
    hidden = math.sqrt(50 * torch.finfo(Q.dtype).eps) * pivots.max()
    if bool(failed) or bool(pivots.min() <= hidden):
        raise ValueError(f"Q must have rank {Q.shape[1]}: its columns must be linearly independent")
    V = torch.cholesky_solve(W.mT, triangle).mT @ scaled.mT
    return V.square() @ Q - W.square()


@dataclass(frozen=True)
class StrategyMatrix(StrategyOracle):
    """A user of type x reports output y with probability Q[y, x]; epsilon = log max_y
    (max_x Q[y, x]/min_x Q[y, x]).

    For a workload W the decoder V = W (Q^T D^{-1} Q)^+ Q^T D^{-1}, D = diag(Q prior), is unbiased,
    V Q = W, and has the least variance of all unbiased ones under the prior, each query on its own.
    ``answers`` and ``workload_variance`` need W in the row space of Q only; what belongs to a
    single type (``totals``, ``analyse``, ``covariance``) is the case W = I and needs Q of rank k.

    matrix: (m, k), k >= 2, positive, columns that add up to 1 (to 1e-6). What is drawn, decoded and
    kept here as ``matrix`` is ``table``/2^63, integers near it that never spend more than it;
    outputs of chance 1e-12 move by up to 1e-7 of theirs. prior: (k,), positive, scaled to 1, or
    None for the uniform one. Raises TypeError, ValueError.

    Guarantees: exactly epsilon-LDP, epsilon the largest log ratio within a row of the integers
    drawn, rounded up.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), strategy matrix and optimal reconstruction.
    """

    matrix: Tensor
    prior: Tensor | None = None
    k: int = field(init=False)
    epsilon: float = field(init=False)
    law: Tensor = field(init=False, repr=False)  # of the output under the prior, (m,)
    table: Tensor = field(init=False, repr=False)  # (m, k), int64, columns that add up to 2^63

    def __post_init__(self) -> None:
        checks.own(self)
        Q = checks.matrix("matrix", self.matrix).detach().double()
        if Q.ndim != 2 or Q.shape[1] < 2:
            raise ValueError(
                f"matrix must have shape (outputs, types) with types >= 2, not {tuple(Q.shape)}"
            )
        if (Q <= 0).any():
            raise ValueError(
                "matrix must be positive: with a 0 no epsilon holds; drop outputs that never occur"
            )
        sums = Q.sum(0)
        if float((sums - 1).abs().max()) > COLUMN_TOLERANCE:
            raise ValueError(
                "matrix must have columns that add up to 1: column x is the output distribution of type x"
            )
        if not bool((Q.amax(1) > Q.amin(1) * (1 + LEAST_RATIO)).any()):
            raise ValueError(
                "matrix must have two different columns; this one says nothing about the type"
            )
        table, epsilon = whole_table(Q / sums)
        table = table.to(Q.device)
        Q, k = table.double() / TOTAL, Q.shape[1]
        prior = (
            torch.ones(k, dtype=torch.float64, device=Q.device)
            if self.prior is None
            else self.prior
        )
        prior = checks.shares("prior", prior, k, positive=True).detach().to(Q.device)
        values = {
            "matrix": Q,
            "prior": prior,
            "k": k,
            "epsilon": epsilon,
            "law": Q @ prior,
            "table": table,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def tuned(
        cls,
        W: Tensor,
        epsilon: float,
        prior: Tensor | None = None,
        objective: Objective = Objective.MEAN,
        *,
        generator: torch.Generator,
        outputs: int | None = None,
        steps: int | None = None,
    ) -> "StrategyMatrix":
        """A strategy of small variance for W among all epsilon-LDP ones.

        What is small is the variance of one user's part in the answers, of a type drawn from
        ``prior`` or of the worst type where that is None: in the mean over the queries, or for
        ``Objective.WORST`` of the worst query, which starts from the best in the mean. Not convex,
        and no gap is promised: see :func:`strategy_lower_bound`.

        Args:
            W: (m, k), real, not zero, k >= 2. A constant may be taken off each row: it changes no
                variance.
            epsilon: in [0.001, 30].
            prior: (k,), positive, scaled to 1; None: the worst type, whose least favourable prior
                the result keeps.
            objective: over the queries.
            outputs: most rows allowed, at least 2k; None: 4k. More rows, less variance.
            steps: of descent; None: 700, beyond 40 types 300.

        A :class:`LearnedStrategy` descends from random subsets of types, beyond 40 types from the
        rows of ``ShiftStrategy.tuned`` and above epsilon = 2.5 from both; under a prior three times
        in turn. Randomized and Hadamard response stand as candidates beside the outcome.

        Raises TypeError, ValueError.
        Guarantees: at most epsilon-LDP, ``epsilon`` measured on the matrix returned.
        Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam.
        """
        W, epsilon, prior = strategy_problem(W, epsilon, prior)
        k = W.shape[1]
        outputs = checks.integer("outputs", 4 * k if outputs is None else outputs, 2 * k)
        checks.fits("outputs", outputs, k)
        usual = USUAL_STEPS if k <= SMALL else FEW_STEPS
        steps = checks.integer("steps", usual if steps is None else steps, 0)
        checks.instance("objective", objective, Objective)
        generator = checks.random_source(generator, W.device)
        types = torch.arange(k, device=W.device)
        known = [kind(k, epsilon * (1 - SLACK)) for kind in (RandomizedResponse, HadamardResponse)]
        found = [cls(each.laws(types).mT, prior) for each in known if each.outputs <= outputs]
        root = gram_root(W)
        for logits in _starts(W, epsilon, outputs, generator):
            even = torch.full_like(logits, 1 / len(logits))
            module = LearnedStrategy(even, epsilon)
            module.logits.data = logits
            # For the worst type each descent would sharpen its smooth maximum anew.
            descents = 1 if prior is None else DESCENTS
            made = cls._descended(module, root, prior, Objective.MEAN, steps // descents)
            for _ in range(descents - 1):
                again = LearnedStrategy(made.matrix, made.epsilon)
                made = cls._descended(again, root, prior, Objective.MEAN, steps // descents)
            found.append(made)
        fitting = [each for each in found if each.epsilon <= epsilon]
        best = min(fitting, key=lambda each: each.judged(W, prior, Objective.MEAN))
        if objective is Objective.MEAN or len(W) == 1:
            return best
        return best.sharpened(W, prior, steps)

    def judged(self, W: Tensor, prior: Tensor | None, objective: Objective) -> float:
        """The variance that ``tuned`` makes small: over the queries as ``objective`` says, over the
        types by prior.
        """
        variance = self.workload_variance(W)  # (queries, types)
        each = variance.mean(0, keepdim=True) if objective is Objective.MEAN else variance
        return float((each.amax(1) if prior is None else each @ prior).max())

    def sharpened(self, W: Tensor, prior: Tensor | None, steps: int = 500) -> "StrategyMatrix":
        """This one or one whose worst query has less variance, for the same epsilon at most.
        Unchecked.
        """
        module = LearnedStrategy(self.matrix, self.epsilon)
        found = self._descended(module, W, prior, Objective.WORST, steps, self._prior)
        variances = [each.judged(W, prior, Objective.WORST) for each in (self, found)]
        return found if found.epsilon <= self.epsilon and variances[1] < variances[0] else self

    @classmethod
    @torch.enable_grad()
    def _descended(
        cls,
        module: LearnedStrategy,
        W: Tensor,
        prior: Tensor | None,
        objective: Objective,
        steps: int,
        law: Tensor | None = None,
    ) -> "StrategyMatrix":
        """Adam on the module's parameters, and for the worst type on the decoder's prior, which
        begins at ``law``.

        Against ``answer_variances``, added up over the rows of W or for the worst of them; where
        there are several numbers, against a smooth maximum of them that sharpens.
        O(steps m k (k + queries)).
        """
        k = W.shape[1]
        start = W.new_zeros(k) if law is None else law.log()
        heights = start.requires_grad_()
        adam = Adam([*module.parameters(), *([heights] if prior is None else [])], (0.9, 0.99))
        for step in range(steps):
            decoders = heights.softmax(0) if prior is None else prior
            try:
                variances = _answer_variances(module(), W, decoders)  # (queries, types)
            except ValueError:  # left the matrices of full rank
                break
            if objective is Objective.MEAN:
                variances = variances.sum(0)
            judged = variances.flatten() if prior is None else variances @ prior
            share = step / steps
            largest = judged.detach().max()
            sharpness = SOFTEST * (SHARPEST / SOFTEST) ** min(1.0, 1.25 * share)
            loss = torch.logsumexp(judged / largest / sharpness, -1) * sharpness
            adam.step(loss, LEARNING_RATE * max(LAST, 1 - share))
        # rows near an end of their range go there, so that all of epsilon is spent
        far = (module.logits + module._last).detach()
        module.logits.data += torch.where(far.abs() > EXTREME, far.sign() * FARTHER, 0.0)
        decoders = heights.softmax(0) if prior is None else prior
        return cls(module().detach(), decoders.detach())

    def repeated(self, place: Tensor) -> "StrategyMatrix":
        """On other types, of which x reports as type place_x does here: (k',); the prior evenly
        over those alike.
        """
        sizes = torch.bincount(place, minlength=self.k)
        return StrategyMatrix(self.matrix[:, place], (self._prior / sizes)[place])

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(
            self.epsilon, "McKenna et al. (2020); epsilon = largest log ratio within a row"
        )

    @property
    def blanket(self) -> Blanket:
        return Blanket.of_table(self.matrix.mT, self.epsilon)

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def laws(self, types: Tensor) -> Tensor:
        return self.matrix.mT[types]

    @property
    def outputs(self) -> int:
        """m."""
        return self.matrix.shape[0]

    @property
    def _prior(self) -> Tensor:
        """(k,), the uniform one where none was given."""
        return self.matrix.new_full((self.k,), 1 / self.k) if self.prior is None else self.prior

    @cached_property
    def inverse(self) -> Tensor:
        """(Q^T D^{-1} Q)^+ Q^T D^{-1}, (k, m), by the singular values of D^{-1/2} Q."""
        root = self.law.sqrt()
        return torch.linalg.pinv(self.matrix / root[:, None]) / root

    @cached_property
    def _cumulative(self) -> Tensor:
        """(k, power of two), int64: how many integers lead to outputs 0, ..., y; the last but one
        number beyond.
        """
        sums = self.table.new_full((self.k, 1 << self.bits_per_user), TOTAL - 1)
        sums[:, : self.outputs - 1] = self.table.mT[:, :-1].cumsum(-1)
        return sums

    def decoder(self, W: Tensor) -> Tensor:
        """V with V Q = W: (*batch, q, k) -> (*batch, q, m). Raises ValueError where W is not in the
        row space of Q.
        """
        W = self._workload(W)
        V = W @ self.inverse
        missed = (V @ self.matrix - W).detach().abs().amax()
        if bool(missed > ROW_SPACE_TOLERANCE * W.detach().abs().amax()):
            raise ValueError(
                f"W holds queries outside the row space of the matrix, which has {self.outputs} outputs and "
                f"{self.k} types; no unbiased answer exists. Ask for rows of W within it, or take another matrix"
            )
        return V

    def answers(self, tally: Tally, W: Tensor) -> Tensor:
        return tally["reports"].double() @ self.decoder(W).mT

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One output in [0, m) for each user: int64, the shape of ``x``."""
        x, number = x.long(), draws.integers(tuple(x.shape))
        width = self._cumulative.shape[-1]
        table, start = self._cumulative.flatten(), x * width
        found = torch.zeros_like(x)
        while width > 1:  # binary search in the row of each user's type
            width //= 2
            found += width * (number >= table[start + found + (width - 1)])
        return found.clamp_(max=self.outputs - 1)  # beyond it for the number 2^63 - 1 alone

    def totals(self, tally: Tally) -> Tensor:
        """Raises ValueError for rank below k."""
        return self.answers(tally, self.identity)


def _starts(W: Tensor, epsilon: float, outputs: int, generator: torch.Generator) -> list[Tensor]:
    """Logits of rows where the descents for W begin, (outputs at most, k) each."""
    k = W.shape[1]
    starts = []
    if k > SMALL:
        rows = ShiftStrategy.tuned(W, epsilon, generator=generator).rows[:outputs]
        # equal rows would stay equal
        noise = torch.randn(rows.shape, dtype=W.dtype, device=W.device, generator=generator)
        starts.append(5 * rows.double() - 2.5 + 0.2 * noise)
    if k <= SMALL or epsilon > SHARP:
        starts.append(random_subsets(k, outputs, epsilon, generator))
    return starts
