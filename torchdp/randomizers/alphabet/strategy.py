"""Strategy matrices: any local randomizer with finitely many outputs, and its best decoder.

Also as modules: learned by any optimisation, private at every step of it.

Notation: Q is (m, k), its columns the distributions of the outputs; D = diag(Q prior); V = W (Q^T
D^{-1} Q)^+ Q^T D^{-1} is the decoder of the workload W; z_y is the least entry of row y.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Objective, Tally
from torchdp.randomizers.alphabet.chances import TOTAL, whole_table
from torchdp.randomizers.alphabet.frequency import StrategyOracle
from torchdp.randomizers.alphabet.randomized_response import HadamardResponse, RandomizedResponse
from torchdp.randomizers.alphabet.shift_strategy import ShiftStrategy
from torchdp.randomizers.alphabet.strategy_descent import Descent, column_shift, least_entries
from torchdp.randomizers.alphabet.strategy_search import (
    gram_root,
    random_subsets,
    strategy_problem,
)
from torchdp.randomizers.alphabet.translates import parity_weights
from torchdp.randomizers.base import exact_local

# A column sum further from 1 is taken for a mistake.
COLUMN_TOLERANCE = 1e-6

# Of two chances of one output, less 1: less would drown in the rounding of float64.
LEAST_RATIO = 2.0**-30

# Logits of entries that count as being at an end of their range, and by how much they move on.
EXTREME = 4.0
FARTHER = 20.0

# Types up to which random starts do; steps of descent up to these, and from shifts beyond.
SMALL = 40
USUAL_STEPS = 500
FEW_STEPS = 350

# Of the search for the shifts where that begins.
START_STEPS = 100

# The same for queries of parities: 2 to 4 % less error than from shifts at the same cost.
SMALL_OF_PARITIES = 64

# Under a prior: descents one after the other, each from the last one's rows, which are moved to the
# ends of their range: one per cent less error.
DESCENTS = 3

# Epsilon above which random starts may do better than shifts, beyond SMALL types.
SHARP = 2.5

# Of the largest entry of W; what is left of W beyond it is outside the row space.
ROW_SPACE_TOLERANCE = 1e-8

# A start's entries are kept this share of their range away from its ends, where the slope vanishes.
EDGE = 1e-3

# Of epsilon, left to rounding.
SLACK = 1e-9

LARGEST_EPSILON = 30.0


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
        Q = checks.matrix("start", start).detach().double()
        epsilon = checks.positive("epsilon", epsilon)
        if Q.ndim != 2 or not bool((Q > 0).all()):
            raise ValueError(
                f"start must be one positive matrix (outputs, types), not of shape {tuple(Q.shape)}"
            )
        ratios = Q.amax(1) / Q.amin(1)
        own = float(ratios.log().max())
        if not own * (1 - SLACK) <= epsilon <= LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must lie between start's own, {own:g}, and 30, not {epsilon!r}"
            )
        self.epsilon = epsilon
        growth = self._growth
        least = math.exp(-epsilon)
        z = (Q.amin(1) * Q.amax(1) / (1 + growth)).sqrt()  # a row in the middle of its range
        share = (Q / z[:, None] - 1) / growth
        level = (float(z.sum()) - least) / (1 - least)
        level = min(max(level, EDGE), 1 - EDGE)
        odds = math.log(level / (1 - level))
        self.logits = nn.Parameter(share.clamp(EDGE, 1 - EDGE).logit())
        self.weights = nn.Parameter(z.log())
        self.level = nn.Parameter(Q.new_tensor(odds))
        # Where the search for the shifts begins: near the next ones, as parameters move little.
        self._last = Q.new_zeros(Q.shape[1])

    @property
    def _growth(self) -> float:
        return math.expm1(self.epsilon * (1 - SLACK))

    def forward(self) -> Tensor:
        """Q, (m, k): positive, columns that add up to 1, rows within a factor of e^epsilon."""
        z, _ = least_entries(self.weights, self.level, self._growth)
        shift = _Shift.apply(self.logits, z, self._growth, self._last)
        self._last = shift.detach()
        share = (self.logits + shift).sigmoid()
        return z[:, None] * (1 + self._growth * share)


class _Shift(torch.autograd.Function):
    """``column_shift`` with the implicit function's gradient."""

    @staticmethod
    def forward(ctx, logits: Tensor, z: Tensor, growth: float, start: Tensor) -> Tensor:
        shift = column_shift(logits, z, growth, start)
        ctx.save_for_backward(logits, z, shift)
        ctx.growth = growth
        return shift

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, z, shift = ctx.saved_tensors
        share = (logits + shift).sigmoid()
        # The implicit function's: the sum stays 1.
        slopes = z[:, None] * share * (1 - share)  # (m, k)
        price = gradient / slopes.sum(0)
        return -slopes * price, -(share + 1 / ctx.growth) @ price, None, None


@dataclass(frozen=True)
class StrategyMatrix(StrategyOracle):
    """A user of type x reports output y with probability Q[y, x].

    epsilon = log max_y (max_x Q[y, x]/min_x Q[y, x]). For a workload W the decoder
    V = W (Q^T D^{-1} Q)^+ Q^T D^{-1}, D = diag(Q prior), is unbiased, V Q = W,
    and has the least variance of all unbiased ones under the prior, each query on its own.
    ``answers`` and ``workload_variance`` need W in the row space of Q only; what belongs to a
    single type (``totals``, ``analyse``, ``covariance``) is the case W = I and needs Q of rank k.

    What is drawn, decoded and kept here as ``matrix`` is ``table``/2^63, integers near the argument
    that never spend more than it; outputs of chance 1e-12 move by up to 1e-7 of theirs. Raises
    TypeError, ValueError.

    Args:
        matrix: Q, (m, k), k >= 2, positive, columns that add up to 1 (to 1e-6).
        prior: (k,), positive, scaled to 1; None: uniform.

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
                "matrix must have columns that add up to 1: column x is the output distribution of "
                "type x"
            )
        if not bool((Q.amax(1) > Q.amin(1) * (1 + LEAST_RATIO)).any()):
            raise ValueError(
                "matrix must have two different columns; this one says nothing about the type"
            )
        table, epsilon = whole_table(Q / sums)
        table = table.to(Q.device)
        Q = table.double() / TOTAL
        k = Q.shape[1]
        prior = Q.new_ones(k) if self.prior is None else self.prior
        prior = checks.shares("prior", prior, k, positive=True)
        prior = prior.detach().to(Q.device)
        object.__setattr__(self, "matrix", Q)
        object.__setattr__(self, "prior", prior)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "law", Q @ prior)
        object.__setattr__(self, "table", table)

    @classmethod
    def tuned(
        cls,
        W: Tensor,
        epsilon: float,
        prior: Tensor | None = None,
        objective: Objective = Objective.MEAN,
        *,
        generator: torch.Generator,
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
            steps: of descent; None: 500, beyond 40 types 350.

        A :class:`LearnedStrategy` of at most 4k rows descends from random subsets of types, beyond
        40 types from the rows of ``ShiftStrategy.tuned`` and above epsilon = 2.5 from both; under a
        prior three times in turn. For queries that are sums of parities or tables of marginals 64
        types take the place of 40: their types have no order that shifts could follow. Randomized
        and Hadamard response stand as candidates beside the outcome.

        Raises TypeError, ValueError.
        Guarantees: at most epsilon-LDP, ``epsilon`` measured on the matrix returned.
        Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam.
        """
        W, epsilon, prior = strategy_problem(W, epsilon, prior)
        k = W.shape[1]
        outputs = 4 * k
        checks.fits("the strategy", outputs, k)
        small = _is_small(W)
        usual = USUAL_STEPS if small else FEW_STEPS
        steps = checks.integer("steps", usual if steps is None else steps, 0)
        checks.instance("objective", objective, Objective)
        generator = checks.random_source(generator, W.device)
        types = torch.arange(k, device=W.device)
        candidates = []
        for kind in (RandomizedResponse, HadamardResponse):
            oracle = kind(k, epsilon * (1 - SLACK))
            candidates.append(cls(oracle.laws(types).mT, prior))
        root = gram_root(W)
        # For the worst type each descent would sharpen its smooth maximum anew.
        descents = 1 if prior is None else DESCENTS
        for logits in _starts(W, epsilon, outputs, small, generator):
            even = torch.full_like(logits, 1 / len(logits))
            module = LearnedStrategy(even, epsilon)
            module.logits.detach().copy_(logits)
            strategy = cls._descended(module, root, prior, Objective.MEAN, steps // descents)
            for _ in range(descents - 1):
                module = LearnedStrategy(strategy.matrix, strategy.epsilon)
                strategy = cls._descended(module, root, prior, Objective.MEAN, steps // descents)
            candidates.append(strategy)
        private = [candidate for candidate in candidates if candidate.epsilon <= epsilon]
        best = min(private, key=lambda candidate: candidate.judged(W, prior, Objective.MEAN))
        if objective is Objective.MEAN or len(W) == 1:
            return best
        return best.improved(W, prior, Objective.WORST, steps)

    def judged(self, W: Tensor, prior: Tensor | None, objective: Objective) -> float:
        """The variance that ``tuned`` makes small.

        Over the queries as ``objective`` says, over the types by prior, the worst for None.
        """
        variance = self.workload_variance(W)  # (queries, types)
        if objective is Objective.MEAN:
            variance = variance.mean(0, keepdim=True)
        of_queries = variance.amax(1) if prior is None else variance @ prior
        return float(of_queries.max())

    def improved(
        self, W: Tensor, prior: Tensor | None, objective: Objective, steps: int
    ) -> "StrategyMatrix":
        """This one, or one of less variance that a descent from here finds at no more epsilon.

        Unchecked.
        """
        module = LearnedStrategy(self.matrix, self.epsilon)
        # Of neither the size counts, which may under- or overflow.
        rows = gram_root(W) if objective is Objective.MEAN else W / W.abs().max()
        other = self._descended(module, rows, prior, objective, steps, self._prior)
        before = self.judged(W, prior, objective)
        after = other.judged(W, prior, objective)
        return other if other.epsilon <= self.epsilon and after < before else self

    @classmethod
    @torch.no_grad()
    def _descended(
        cls,
        module: LearnedStrategy,
        W: Tensor,
        prior: Tensor | None,
        objective: Objective,
        steps: int,
        start: Tensor | None = None,
    ) -> "StrategyMatrix":
        """A descent's end from the module's parameters, and from the decoder's prior ``start``."""
        heights = W.new_zeros(W.shape[1]) if start is None else start.log()
        parameters = (module.logits, module.weights, module.level, heights)
        descent = Descent(*parameters, module._growth, W, prior, objective)
        descent.run(steps)
        # Entries near an end of their range go there, so that all of epsilon is spent.
        shifted = descent.logits + descent.shift
        farther = shifted.sign() * FARTHER
        module.logits.copy_(descent.logits + torch.where(shifted.abs() > EXTREME, farther, 0.0))
        module.weights.copy_(descent.weights)
        module.level.copy_(descent.level)
        return cls(module(), descent.decoders_prior())

    def repeated(self, place: Tensor) -> "StrategyMatrix":
        """On other types, of which x reports as type place_x does here: (k',).

        The prior is spread evenly over the types that report as one does.
        """
        sizes = torch.bincount(place, minlength=self.k)
        return StrategyMatrix(self.matrix[:, place], (self._prior / sizes)[place])

    @property
    def guarantee(self) -> Guarantee:
        source = "McKenna et al. (2020); epsilon = largest log ratio within a row"
        return exact_local(self.epsilon, source)

    @property
    def blanket(self) -> Blanket:
        return Blanket.of_table(self.matrix.mT, self.epsilon)

    @property
    def home(self) -> torch.device:
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
        if self.prior is None:
            return self.matrix.new_full((self.k,), 1 / self.k)
        return self.prior

    @cached_property
    def inverse(self) -> Tensor:
        """(Q^T D^{-1} Q)^+ Q^T D^{-1}, (k, m), by the singular values of D^{-1/2} Q."""
        root = self.law.sqrt()
        return torch.linalg.pinv(self.matrix / root[:, None]) / root

    @cached_property
    def _cumulative(self) -> Tensor:
        """How many integers lead to outputs 0, ..., y: (k, power of two), int64.

        Beyond the outputs the last but one number.
        """
        sums = self.table.new_full((self.k, 1 << self.bits_per_user), TOTAL - 1)
        sums[:, : self.outputs - 1] = self.table.mT[:, :-1].cumsum(-1)
        return sums

    def decoder(self, W: Tensor) -> Tensor:
        """V with V Q = W: (*batch, q, k) -> (*batch, q, m).

        Raises ValueError where W is not in the row space of Q.
        """
        W = self._workload(W)
        V = W @ self.inverse
        missed = (V @ self.matrix - W).detach().abs().amax()
        if bool(missed > ROW_SPACE_TOLERANCE * W.detach().abs().amax()):
            raise ValueError(
                "W holds queries outside the row space of the matrix, which has "
                f"{self.outputs} outputs and {self.k} types; no unbiased answer exists. Ask for "
                "rows of W within it, or take another matrix"
            )
        return V

    def answers(self, tally: Tally, W: Tensor) -> Tensor:
        return tally["reports"].double() @ self.decoder(W).mT

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One output in [0, m) for each user: int64, the shape of ``x``."""
        number = draws.integers(tuple(x.shape))
        width = self._cumulative.shape[-1]
        table = self._cumulative.flatten().to(x.device)
        start = x.long() * width
        output = torch.zeros_like(start)
        while width > 1:  # binary search in the row of each user's type
            width //= 2
            output += width * (number >= table[start + output + (width - 1)])
        return output.clamp_(max=self.outputs - 1)  # beyond it for the number 2^63 - 1 alone

    def totals(self, tally: Tally) -> Tensor:
        """Raises ValueError for rank below k."""
        return self.answers(tally, self.identity)


def _starts(
    W: Tensor, epsilon: float, outputs: int, small: bool, generator: torch.Generator
) -> list[Tensor]:
    """Logits of rows where the descents for W begin, (outputs at most, k) each."""
    starts = []
    if not small:
        shift = ShiftStrategy.tuned(W, epsilon, generator=generator, steps=START_STEPS)
        rows = shift.rows[:outputs]
        # Equal rows would stay equal.
        noise = torch.randn(rows.shape, dtype=W.dtype, device=W.device, generator=generator)
        starts.append(5 * rows.double() - 2.5 + 0.2 * noise)
    if small or epsilon > SHARP:
        starts.append(random_subsets(W.shape[1], outputs, epsilon, generator))
    return starts


def _is_small(W: Tensor) -> bool:
    """Whether a descent for W begins at random subsets and takes its time."""
    k = W.shape[1]
    if k <= SMALL:
        return True
    return k <= SMALL_OF_PARITIES and parity_weights(W) is not None
