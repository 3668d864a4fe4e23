"""Mechanisms in a training loop: correlated noise for the sums of clipped gradients, public features as layers.

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
