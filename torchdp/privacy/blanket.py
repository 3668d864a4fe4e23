"""The blanket of a local randomizer: what a message has in common with everybody's.

c(y) is the least chance of the message y over all that a user may hold. Chances are c or up to
e^epsilon c: each user's message is from c, or from what its own chances have beyond it. Three
numbers say all that ``shuffle`` needs.

**Lemma.** E (Z_1 + ... + Z_n)_+ of independent Z_i is convex in the distribution of each, so it
does not fall where Z_i is replaced by a Z'_i with E(Z'_i | Z_i) = Z_i. With r = e^epsilon, E >= 1
and Z = W_0 - E W_1 in every use below:
(a) A chance between c and r c is that of a coin between both: W in [1, r] becomes r with chance (W
- 1)/(r - 1), else 1, for W_0 and W_1 each by itself.
(b) Of two pairs of inputs that one is the worse whose large sets meet less: moving mass from {both,
neither} to {the one alone, the other alone} keeps the mean, since r (1 - E) + (1 - E) = (r - E) +
(1 - r E), and the latter two values lie outside the former.
(c) A chance ratio below r is that of r, whose message is drawn from the base measure at times: so r
may be rounded up.
Source: Balle, Bell, Gascon, Nissim (2019), for the blanket; the lemma is proved here.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks

ROUNDING = 2.0**-40  # of the logarithm of a chance that may be 1


@dataclass(frozen=True)
class Blanket:
    """Chances are c(y), or e^epsilon c(y) on the large set of what is held; c measures sets.

    Args:
        epsilon: log of the ratio, positive.
        member: c of a large set, the same for all that users may hold, since chances add up to 1;
            at most e^-epsilon.
        both: c of what two large sets share, at least. c measures gamma = 1 - (e^epsilon - 1)
            member in all, so that two sets share 2 member - gamma or more: a smaller number is
            raised to this.
        bit: whether the message is no more than the user's own bit, kept or flipped.

    Raises ValueError.

    Guarantees: each message is that of such a randomizer, or a function of it.
    """

    epsilon: float
    member: float
    both: float = 0.0
    bit: bool = False

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=checks.positive, member=checks.fraction, both=checks.non_negative)
        if self.both > self.member:
            raise ValueError(f"both must be at most member = {self.member!r}, not {self.both!r}")
        # In logarithms, since e^epsilon alone may be no float.
        if self.epsilon + math.log(self.member) > ROUNDING:
            raise ValueError(
                f"member must be at most e^-epsilon = {math.exp(-self.epsilon):.6g}, not "
                f"{self.member!r}: a large set would have a chance above 1"
            )
        # member e^epsilon is at most 1, so that nothing overflows; what two sets leave out is not
        # below 0.
        least_shared = self.member + math.exp(self.epsilon + math.log(self.member)) - 1
        object.__setattr__(self, "both", min(max(self.both, least_shared), self.member))

    @staticmethod
    def two_level(
        epsilon: float, share: float, both: float = 0.0, always: float = 0.0, *, bit: bool = False
    ) -> "Blanket":
        """Messages of a base measure, e^epsilon times as likely on a set that what is held decides.

        Args:
            epsilon: log of the ratio, or more.
            share: the measure of a set, of 1 in all, the same for all that users may hold.
            both: of what two sets share, at least; 0 is safe, and raised to 2 share - 1.
            always: of what lies in every set: there c is large, and tells nothing.
            bit: see the class.
        """
        # Chances low and e^epsilon low, on 1 - share and share of the measure, add up to 1.
        low = 1 / (1 + share * math.expm1(min(epsilon, 700.0)))
        # Two sets of measure ``share`` in a whole of 1 have at least 2 share - 1 in common.
        shared = max(both, 2 * share - 1)
        return Blanket(epsilon, low * (share - always), low * max(shared - always, 0.0), bit)

    @staticmethod
    def unknown(epsilon: float) -> "Blanket":
        """Of anything of which only its epsilon is known: two halves that share nothing.

        Proof: for two chances P, P' of one output all others are at least c = max(P, P')/r, so that
        (W_0, W_1) is (r, w) or (w, r), and by the lemma (a) one of (r, 1), (1, r), (r, r), of
        masses u, u, v with (r + 1) u + r v = 1; what is left has Z = 0. As in (b) Z of (r, r) and
        of what is left lie between r - E and 1 - r E: v = 0 and u = 1/(r + 1) are a spread of equal
        mean.
        Source: Feldman, McMillan, Talwar (2023), the clones; the proof is given here.
        """
        return Blanket.two_level(epsilon, 0.5)

    @staticmethod
    def of_table(laws: Tensor, epsilon: float) -> "Blanket":
        """Of any chances (k, outputs), k >= 2, positive, rows that add up to 1.

        Ratios in a column are up to e^epsilon. All pairs of rows at once, by the lemma (a): one
        product of matrices.
        """
        laws = laws.detach().to("cpu", torch.float64)
        least = laws.amin(0)
        excess = laws - least  # c (W - 1)
        growth = math.expm1(epsilon)
        # The lemma's coins fall on r with chances (W - 1)/(r - 1), each by itself: summed over c.
        shared = (excess / least) @ excess.mT / growth**2
        # The pair whose large sets meet least is the worst, (b); a row is no pair with itself.
        both = float(shared.fill_diagonal_(math.inf).min())
        member = float(excess.sum(1).max()) / growth
        return Blanket(epsilon, member, min(max(both, 0.0), member))
