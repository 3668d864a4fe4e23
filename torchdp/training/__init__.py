"""Mechanisms in a training loop: correlated noise for the sums of clipped gradients, public features as layers.

    >>> import torch
    >>> from torchdp import factorization, training
    >>> W = training.iterates(8)  # what four epochs of two batches publish: the parameters after each step
    >>> C = training.causal_strategy(W, factorization.factorize_epochs(W, 2))
    >>> user = training.Epochs(2)  # is in one batch of each epoch
    >>> noise = training.calibrated_noise(C, 3, bound=1.0, epsilon=2.0, delta=1e-5, participation=user)
    >>> private = noise(torch.zeros(3))  # the first step's sum of clipped gradients, from clip_and_sum
    >>> noise.step, noise.guarantee(1.0, 1e-5, user).epsilon <= 2
    (1, True)

:func:`clip_and_sum` makes the sums, :class:`Batches` and :class:`Attendance` keep users to the participation that the
noise is calibrated for, :class:`CorrelatedNoise` spends each number once.

Guarantees: the outputs of all steps together are (epsilon, delta)-DP, also where a step's gradients depend on earlier
outputs (Denisov et al. 2022, Theorem 2.1; Balle, Wang 2018, Theorem 8).

Notation: G (steps x size) holds the sums of clipped gradients, one row for each step; W G is what training uses of
them (prefix sums: the iterates of gradient descent); the outputs are W (G + C^{-1} Z), Z of N(0, sigma^2) entries.
A strategy of least error is one without amplification: nothing here counts on batches being sampled at random.

| API name | symbol | meaning | squared? |
|---|---|---|---|
| strategy | C | lower triangular, steps x steps | |
| sensitivity | | largest Frobenius norm of C U over what one user changes, clipping bound 1 | no |
| sigma | sigma | standard deviation of Z's entries, in the gradients' units | no |
| standard_errors | | row norms of W C^{-1}: at sigma = 1 | no |
"""

from torchdp.training.batches import Attendance, Batches
from torchdp.training.clipping import clip_and_sum, set_gradients
from torchdp.training.layers import FeatureLayer, SketchLayer
from torchdp.training.noise import CorrelatedNoise, calibrated_noise
from torchdp.training.participation import Epochs, Once, Participation, Sensitivity, Separated, sensitivity
from torchdp.training.strategy import causal_strategy, iterates, standard_errors

__all__ = [
    "Attendance",
    "Batches",
    "CorrelatedNoise",
    "Epochs",
    "FeatureLayer",
    "Once",
    "Participation",
    "Sensitivity",
    "Separated",
    "SketchLayer",
    "calibrated_noise",
    "causal_strategy",
    "clip_and_sum",
    "iterates",
    "sensitivity",
    "set_gradients",
    "standard_errors",
]
