"""Sums of bits in the shuffle model: anonymous messages, mixed by a shuffler, added by an analyst.

    >>> import torch
    >>> from torchdp.shuffle import BitSums, PoissonSum
    >>> sums = BitSums.calibrated(PoissonSum, users=1000, epsilon=1.0, delta=1e-6, instances=8)
    >>> estimate = sums.estimate(torch.rand(1000, 8) < 0.3)  # from each user's own messages
    >>> estimate.value.shape, sums.guarantee.epsilon <= 1
    (torch.Size([8]), True)

A :class:`BitLaw` says what a user sends in one instance, its error, and the dominating pairs of
what one bit tells; ``BitSums`` runs it in many instances. S is the number of ones among n
``users``, D the noise of all together.

| law | messages of a user in one instance | noise |
|---|---|---|
| :class:`RandomizedResponseSum` | 1 | its own bit, flipped |
| :class:`PoissonSum` | 1 + E D/n | D of one kind of message |
| :class:`BoundedSum` | the same, more | D symmetric, without a floor: a curator's error at large epsilon |
| :class:`CorrelatedSum` | a few; best for one instance | discrete Laplace, masked by pairs that cancel |
| :class:`CentralGaussianSum` | a reference: to a curator, without noise too | N(0, sigma^2) |

In the order to read, with what each file proves:
``laws``: messages, and what a law of noise says of itself.
``search``: the least noise that is certified.
``count_laws``: exact dominating pairs of counts and of correlated noise (Ghazi et al. 2020).
``inversion``: delta where a user's numbers move little, by summed inversion.
``one_type``, ``correlated``, ``response``: the protocols; the last with the exact curve of shuffled
bits (Cheu et al. 2019).
``sums``: delta over many instances, composed on a grid that is rounded up (Doroshenko et al. 2022,
Algorithm 1), and the protocol.
``amplified``: delta of any local protocol behind a shuffler.

Guarantees: ``delta_of`` and ``epsilon_of`` certify (epsilon, delta) over I instances, by flips or
by movement, whichever is less.
"""

from torchdp.shuffle.amplified import Amplified
from torchdp.shuffle.correlated import CorrelatedSum
from torchdp.shuffle.laws import BitLaw, CentralGaussianSum, ShuffledMessages
from torchdp.shuffle.one_type import BoundedSum, PoissonSum
from torchdp.shuffle.response import RandomizedResponseSum, least_flip
from torchdp.shuffle.search import Sensitivity
from torchdp.shuffle.sums import BitSums, delta_of, epsilon_of

__all__ = [
    "Amplified",
    "BitLaw",
    "BitSums",
    "BoundedSum",
    "CentralGaussianSum",
    "CorrelatedSum",
    "PoissonSum",
    "RandomizedResponseSum",
    "Sensitivity",
    "ShuffledMessages",
    "delta_of",
    "epsilon_of",
    "least_flip",
]
