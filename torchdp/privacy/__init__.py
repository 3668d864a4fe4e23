"""Privacy guarantees, their composition, and the calibration of Gaussian noise, in float64.

    >>> from torchdp.privacy import Model, Neighbours, compose, gaussian_guarantee, gaussian_sigma
    >>> round(gaussian_sigma(epsilon=1.0, delta=1e-6, sensitivity=2.0), 3)
    8.449
    >>> once = gaussian_guarantee(8.45, 1e-6, 2.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
    >>> print(compose([once, once]))
    central differential privacy, at most epsilon = 1.40314, delta = 2e-06, over real numbers

A :class:`Guarantee` states epsilon and delta: its :class:`Model` says who is trusted, its
:class:`Neighbours` which data sets are neighbours, its :class:`Arithmetic` whether it holds for the
integers drawn or for a theorem's real numbers. ``composed_delta`` and ``composed_epsilon`` compose
curves of one mechanism over many instances.

``gaussian_sigma``, ``gaussian_epsilon`` and ``gaussian_log_delta`` take numbers, and batches of
them that broadcast:

    >>> gaussian_sigma([0.5, 1.0, 2.0], 1e-6, sensitivity=2.0)
    tensor([16.1152,  8.4494,  4.4610], dtype=torch.float64)

``sampled_guarantee`` accounts for privacy amplification by subsampling.

A :class:`Budget` refuses any release that would exceed its limit.

To read in this order:

- ``guarantee``: what a mechanism promises; ``composition``: several promises as one
- ``gaussian``: Gaussian noise, exactly, Balle, Wang (2018), Theorem 8
- ``accounting``: curves composed, Doroshenko et al. (2022), Algorithm 1
- ``sampling``: sums over sampled users; ``budget``: releases that are chosen adaptively
- ``blanket``: what all users' messages share, for the shuffle model; the lemma is proved there

Guarantees: Gaussian noise is calibrated tightly (Balle, Wang 2018, Theorem 8); compositions of
curves are never below the truth (Doroshenko et al. 2022, Algorithm 1; Zhu, Dong, Wang 2022, Theorem
10).
"""

from torchdp.privacy.accounting import composed_delta, composed_epsilon
from torchdp.privacy.budget import Budget
from torchdp.privacy.composition import compose, for_groups
from torchdp.privacy.gaussian import (
    gaussian_epsilon,
    gaussian_guarantee,
    gaussian_log_delta,
    gaussian_sigma,
)
from torchdp.privacy.guarantee import Arithmetic, Guarantee, Model, Neighbours
from torchdp.privacy.sampling import sampled_guarantee, sampled_multiplier

__all__ = [
    "Arithmetic",
    "Budget",
    "Guarantee",
    "Model",
    "Neighbours",
    "compose",
    "composed_delta",
    "composed_epsilon",
    "for_groups",
    "gaussian_epsilon",
    "gaussian_guarantee",
    "gaussian_log_delta",
    "gaussian_sigma",
    "sampled_guarantee",
    "sampled_multiplier",
]
