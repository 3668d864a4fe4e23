"""Subset selection: the message is a set of w values, more often one that holds the user's own."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.randomizers.base import exact_local
from torchdp.randomizers.bit_vectors import BitVectorOracle
from torchdp.randomizers.draws import WORD, popcount, without_replacement
from torchdp.randomizers.frequency import spread


@dataclass(frozen=True)
class SubsetSelection(BitVectorOracle):
    """A w-subset of [0, k), e^epsilon times as likely if it holds the user's value x.

    P(x in S) = p = w e^epsilon/(w e^epsilon + k - w), the rest of S uniform; w is k/(e^epsilon + 1) rounded to the
    neighbour of smaller error. With q = P(v in S) and r = P(v, v' in S) for values other than x,
    Cov(Y | x) (p - q)^2 = p (1 - p) at (x, x), p (w - 1)/(k - 1) - p q at (x, v), q (1 - q) at (v, v) and
    r - q^2 at (v, v'). At w = 1 it is randomized response.
    k >= 2; epsilon in (0, 700]. Raises ValueError.

    Guarantees: exactly epsilon-LDP.
    Source: Wang et al. (2016); Ye, Barg (2018), section III, who show it optimal for the histogram.
    """

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self.epsilon, "Ye, Barg (2018); P(S | x in S)/P(S | x not in S) = e^epsilon")

    @cached_property
    def subset(self) -> int:
        """w."""
        best = self.k / (math.exp(self.epsilon) + 1)
        return min({max(1, math.floor(best)), max(1, math.ceil(best))}, key=self._error)

    @property
    def on(self) -> float:
        """p."""
        return self._chances(self.subset)[0]

    @property
    def lost(self) -> float:
        """1 - p."""
        rest = (self.k - self.subset) * math.exp(-self.epsilon)
        return rest / (self.subset + rest)

    @property
    def off(self) -> float:
        """q."""
        return self._chances(self.subset)[1]

    @property
    def gap(self) -> float:
        """p - q."""
        return self._chances(self.subset)[2]

    @property
    def bits(self) -> int:
        """ceil(log2 of the number of w-subsets); ``sample`` gives the set itself, as k bits."""
        return (math.comb(self.k, self.subset) - 1).bit_length()

    def covariance(self, x: int) -> Tensor:
        (p, q, gap), w = self._chances(self.subset), self.subset
        covariance = torch.full((self.k, self.k), self._pair - q * q, dtype=torch.float64).fill_diagonal_(
            q - q * q
        )
        covariance[self._type(x)] = covariance[:, x] = p * (w - 1) / (self.k - 1) - p * q
        covariance[x, x] = p - p * p
        return covariance / gap**2

    def workload_variance(self, W: Tensor) -> Tensor:
        """((q - r) (S_i + k d_ix^2) + (r - q^2) k^2 d_ix^2)/(p - q)^2; d_ix = W_ix - mean_x W_ix, S_i = sum_x d_ix^2.

        O(m k). Y adds up to 1, so a row may be shifted to vanish at x: only the symmetric law of the others is left.
        """
        q, gap, k = self.off, self.gap, self.k
        d, S = spread(self._workload(W))
        squares = S + k * d.square()
        return ((q - self._pair) * squares + (self._pair - q * q) * (k * d).square()) / gap**2

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        """One packed subset for each user: int64 (*x.shape, ceil(k/64)).

        Independent bits with probability w/k, then values added or taken out at random until the size is right:
        given its size a set of independent bits is uniform, and stays so.
        """
        own = x.flatten()
        words = self._packed(own, draws, self.subset / self.k)
        missing = self.subset - popcount(words).sum(-1)
        rows = missing.nonzero()[:, 0]
        while len(rows):
            value = draws.below(self.k, (len(rows),))
            where, place = value // WORD, value % WORD
            word, sign = words[rows, where], missing[rows].sign()
            fits = (((word >> place) & 1) == (1 - sign) // 2) & (value != own[rows])
            words[rows, where] = word ^ (fits.long() << place)
            missing[rows] -= sign * fits
            rows = rows[missing[rows] != 0]
        return words.view(*x.shape, self._words)

    def _reports(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """The tally, exactly in law, by one sweep over the values: O(k w) for each repetition, whatever the users.

        A subset is, with probability a, uniform among all w-subsets, and otherwise uniform among those that hold x
        (a chosen so that the ratio is e^epsilon). The state is how many users have r picks left, for each r: those
        bound to a value still to come, and the others. At value v the users bound to it, a uniform part of the
        bound, take it and join the others, who pick v with probability r over the number of values left.
        """
        k, w = self.k, self.subset
        bound_users = draws.binomial(counts.expand(*shape, k), self._bound)
        bound = torch.zeros(*shape, w + 1, dtype=torch.int64, device=counts.device)
        free = torch.zeros_like(bound)
        bound[..., w - 1] = bound_users.sum(-1)
        free[..., w] = counts.sum() - bound_users.sum(-1)
        left = torch.arange(w + 1, dtype=torch.float64, device=counts.device)
        reports = []
        for v in range(k):
            own = without_replacement(bound, bound_users[..., v], draws)
            bound = bound - own
            crowds = torch.stack([bound, free], -2)
            chance = torch.stack([left / max(1, k - 1 - v), left / (k - v)]).clamp_max(1)
            picks = draws.binomial(crowds, chance)
            moved = torch.nn.functional.pad(picks[..., 1:], (0, 1))  # who picked has one pick less
            bound, free = (crowds - picks + moved).unbind(-2)
            free = free + own
            reports.append(own.sum(-1) + picks.sum((-2, -1)))
        return torch.stack([*reports, counts.sum().expand(shape)], -1)

    @property
    def _bound(self) -> float:
        """Probability of the branch 'uniform among the w-subsets that hold x'."""
        return -math.expm1(-self.epsilon) * self.on

    @property
    def _pair(self) -> float:
        """r = P(v, v' in S), v and v' other values than x."""
        p, w, k = self.on, self.subset, self.k
        return (w - 1) * (p * (w - 2) + (1 - p) * w) / ((k - 1) * (k - 2)) if k > 2 else 0.0

    def _chances(self, w: int) -> tuple[float, float, float]:
        rest = (self.k - w) * math.exp(-self.epsilon)
        p = w / (w + rest)
        gap = w * (self.k - w) * -math.expm1(-self.epsilon) / ((w + rest) * (self.k - 1))
        return p, (w - p) / (self.k - 1), gap

    def _error(self, w: int) -> float:
        """E ||Y - e_x||^2."""
        p, q, gap = self._chances(w)
        return (p * (1 - p) + (self.k - 1) * q * (1 - q)) / gap**2
