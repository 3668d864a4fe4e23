"""Regression, low rank, moments and histograms from secure sums, without a trusted curator.

>>> import torch
>>> from torchdp import regression
>>> gram = regression.GramRelease(1000, 2, bound=1.0, epsilon=1.0, delta=1e-6, label_bound=1.0)
>>> noisy = gram.estimate(torch.full((1000, 3), 0.5))  # rows [A b]: svec(A^T A) and A^T b
>>> regression.adaptive_ridge(noisy, ridge=1.0).shape, noisy.n
(torch.Size([2]), 1000)

``gram.secure_sum(servers)`` is the same sum by servers that see shares only; its x is
``gram.rows(x)``.

| name | symbol | what it is |
|---|---|---|
| ``x`` | [A b] | a row for each client, the label last where ``label_bound`` is given |
| ``bound``, ``label_bound`` | B, C | largest l_2 norm of a row; largest label |
| ``SecondMoments`` | M | [A b]^T [A b] and n: the summary of x; exact, not private |
| ``NoisyMoments`` | | an estimate of svec(A^T A) and A^T b; ridge and low rank read no more |
| ``gram_sigma``, ``cross_sigma`` | | standard deviations of their noise, not squared |
| ``phi``, ``psi`` | | loss over the least loss; excess risk of a space |

To be read in this order:

* ``errors``: moments of clients' rows, the losses phi and psi that methods are judged by.
* ``second_moment_noise``: ``NoisyMoments``, what every route ends with; ``debiased`` sketches.
* ``gram``: the Gram route; its sensitivities are derived there. Balle, Wang (2018), Theorem 8;
  "Analyze Gauss", Dwork, Talwar, Thakurta, Zhang (2014).
* ``local``: noisy rows, the local model's baseline. Balle, Wang (2018), Theorem 8.
* ``ridge``: solutions from noisy moments, and their errors predicted. Stein (1981), Lemma 1.
* ``choose``: the routes compared. ``moments``: frequency moments and histograms, by one sum.
"""

from torchdp.regression.choose import choose_low_rank, choose_regression
from torchdp.regression.errors import SecondMoments, loss, phi, psi
from torchdp.regression.gram import GramRelease
from torchdp.regression.local import LocalRows
from torchdp.regression.moments import FrequencyMoments, SecureHistogram
from torchdp.regression.ridge import adaptive_ridge, cautious_ridge, solve_ridge, top_directions
from torchdp.regression.second_moment_noise import debiased

__all__ = [
    "FrequencyMoments",
    "GramRelease",
    "LocalRows",
    "SecondMoments",
    "SecureHistogram",
    "adaptive_ridge",
    "cautious_ridge",
    "choose_low_rank",
    "choose_regression",
    "debiased",
    "loss",
    "phi",
    "psi",
    "solve_ridge",
    "top_directions",
]
