"""Differentially private training: plans of least error, correlated noise, layers of features.

    >>> import torch
    >>> from torchdp import training
    >>> x, model = torch.linspace(-1, 1, 60)[:, None], torch.nn.Linear(1, 1)
    >>> W = training.Descent(12, momentum=0.9)  # where the noise's effect is minimised: twelve steps of SGD
    >>> choice = training.choose(W, users=60, batch=20, epsilon=2.0, delta=1e-5)
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    >>> run = choice.best.start(model, torch.nn.functional.mse_loss)
    >>> for users in run:
    ...     loss = run.backward(x[users], 2 * x[users])  # clipped, summed, noise added, in ``.grad``; loss: not private
    ...     optimizer.step()
    >>> run.step, run.guarantee.epsilon <= 2
    (12, True)

:func:`choose` compares sampled batches with independent or banded noise and a fixed order with
correlated noise; a :class:`Plan` holds what belongs together, a :class:`Run` spends it once
(with Lightning or the Trainer of transformers: :mod:`torchdp.training.lightning`,
:mod:`torchdp.training.transformers`). Underneath: :func:`clip_and_sum` makes the sums,
:class:`Batches`, :class:`SampledBatches` and :class:`ParticipationLog` enforce the participation
that the noise is calibrated for, :class:`CorrelatedNoise` uses each random number once.

Read in this order: ``strategy`` (workloads W and strategies C; what noise costs them),
``participation`` (a user's steps, and how far they move C G: Choquette-Choo et al. 2023, Theorems 2
and 4), ``noise`` on ``stream`` (C^{-1} Z, each number drawn once: Denisov et al. 2022, Theorem
2.1), ``mechanism``, ``plan`` and ``choose`` (the guarantee; adaptive bounds), ``run`` on ``steps``,
``batches``, ``secret`` and ``replicas`` (each step once); ``clipping`` on ``sums`` (no gradient is
longer than the bound), ``routes``, ``record``, ``rules``, ``factors``, ``per_example`` and
``accepted`` (each example's own gradient).

Guarantees: the outputs of all steps together are (epsilon, delta)-DP, also where a step's gradients
depend on earlier outputs (Denisov et al. 2022, Theorem 2.1; Balle, Wang 2018, Theorem 8; sampled:
Choquette-Choo et al. 2023, Theorem 4).

Notation: G (steps x size) holds the sums of clipped gradients, one row for each step; W G is what
training uses of them (prefix sums: the iterates of gradient descent); the outputs are W
(G + C^{-1} Z), Z of N(0, sigma^2) entries. A user's steps are limited by a :class:`Participation`,
with a custom loader by :class:`OwnBatches`, or random: :class:`CyclicPoisson`.

| API name | symbol | meaning | squared? |
|---|---|---|---|
| strategy | C | lower triangular, steps x steps | |
| sensitivity | | largest Frobenius norm of C U over what one user changes, clipping bound 1 | no |
| sigma | sigma | standard deviation of Z's entries, in the gradients' units | no |
| standard_errors | | row norms of W C^{-1}: at sigma = 1 | no |
"""

from torchdp.training.batches import Batches, ParticipationLog, SampledBatches
from torchdp.training.choose import choose
from torchdp.training.clipping import clip_and_sum
from torchdp.training.layers import FeatureLayer, SketchLayer
from torchdp.training.mechanism import AdaptiveBound, Mechanism
from torchdp.training.noise import CorrelatedNoise, calibrated_noise
from torchdp.training.participation import (
    ONCE,
    CyclicPoisson,
    Epochs,
    OwnBatches,
    Participation,
    Sensitivity,
    Separated,
    sensitivity,
)
from torchdp.training.passes import Passes
from torchdp.training.plan import Plan
from torchdp.training.run import Run
from torchdp.training.strategy import Descent, Iterates, causal_strategy, standard_errors
from torchdp.training.sums import clipped_sum, set_gradients

__all__ = [
    "ONCE",
    "AdaptiveBound",
    "Batches",
    "CorrelatedNoise",
    "CyclicPoisson",
    "Descent",
    "Epochs",
    "FeatureLayer",
    "Iterates",
    "Mechanism",
    "OwnBatches",
    "Participation",
    "ParticipationLog",
    "Passes",
    "Plan",
    "Run",
    "SampledBatches",
    "Sensitivity",
    "Separated",
    "SketchLayer",
    "calibrated_noise",
    "causal_strategy",
    "choose",
    "clip_and_sum",
    "clipped_sum",
    "sensitivity",
    "set_gradients",
    "standard_errors",
]
