"""Local randomizers, what one user runs: frequency oracles, and randomizers of bounded vectors.

Users of a frequency oracle hold one of k types and the estimate is the histogram; users of a ball
randomizer hold vectors of a ball and the estimate is their mean. Each states its exact epsilon and
its error, and samples the analyst's sums directly from their distribution, without messages:

>>> import torch
>>> oracle = SubsetSelection(k=100, epsilon=1.0)
>>> messages = oracle.randomize(torch.arange(100).repeat(50))  # 5000 users, each by itself
>>> found = oracle.analyse(oracle.tally(messages))  # shares of the types, their standard errors
>>> found.value.shape, oracle.bits_per_user, oracle.guarantee.epsilon
(torch.Size([100]), 100, 1.0)

| symbol | name | meaning |
|---|---|---|
| k | ``k`` | types; x in [0, k) |
| d | ``dim`` | dimension of the ball of radius ``radius`` |
| Y | ``totals``, ``tally`` | a decoded message: E Y = e_x, or x |
| Cov(Y given x) | ``covariance``, ``workload_variance``, ``moments`` | exact, squared |
| Q | ``StrategyMatrix.matrix``, ``laws`` | (outputs, types), its columns the output distributions |
| c0, c1 | ``low_density``, ``high_density`` | densities off the cap and on it, c1 = e^epsilon c0 |

Read ``base`` and ``draws`` (exact draws of packed bits and crowds) first, then:

- ``alphabet.chances`` (rational chances, rounded to the private side), ``alphabet.frequency`` (what
  oracles share), ``alphabet.randomized_response``, ``alphabet.bit_vectors`` and
  ``alphabet.subset_selection``: one theorem each, that of the ``Source`` of its classes.
- ``alphabet.strategy`` (any matrix; its best decoder), ``alphabet.shift_strategy`` (translates of
  patterns), with their searches ``strategy_search`` and ``translates``, and ``strategy_bound``
  (weak duality: no report has less variance).
- ``ball.ball`` (what randomizers of a ball share), ``ball.lattice`` (whole numbers that keep the
  guarantee of real ones), ``ball.sphere`` and ``ball.privunit`` (the optimal cap), and
  ``ball.axial_sums`` (Cornish and Fisher's expansion of sums).

Theorems: Warner (1965); Wang, Blocki, Li, Jha (2017); Ye, Barg (2018); Acharya, Sun, Zhang (2019);
McKenna, Maity, Mazumdar, Miklau (2020) for types. Duchi, Jordan, Wainwright (2018); Bhowmick et al.
(2018); Blasiok, Bun, Nikolov, Steinke (2019); Asi, Feldman, Talwar (2022); Asi et al. (2023);
Balle, Wang (2018) for vectors.
"""

from torchdp.randomizers.alphabet.bit_vectors import OptimizedUnaryEncoding, SymmetricUnaryEncoding
from torchdp.randomizers.alphabet.randomized_response import HadamardResponse, RandomizedResponse
from torchdp.randomizers.alphabet.shift_strategy import ShiftStrategy
from torchdp.randomizers.alphabet.strategy import LearnedStrategy, StrategyMatrix
from torchdp.randomizers.alphabet.strategy_bound import strategy_lower_bound
from torchdp.randomizers.alphabet.subset_selection import SubsetSelection
from torchdp.randomizers.ball.ball import DuchiJordanWainwright
from torchdp.randomizers.ball.lattice import GaussianVector
from torchdp.randomizers.ball.privunit import PrivUnit

__all__ = [
    "DuchiJordanWainwright",
    "GaussianVector",
    "HadamardResponse",
    "LearnedStrategy",
    "OptimizedUnaryEncoding",
    "PrivUnit",
    "RandomizedResponse",
    "ShiftStrategy",
    "StrategyMatrix",
    "SubsetSelection",
    "SymmetricUnaryEncoding",
    "strategy_lower_bound",
]
