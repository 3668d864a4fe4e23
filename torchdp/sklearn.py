"""scikit-learn estimators whose ``fit`` releases the data once, as a curator.

They need ``torchdp[sklearn]``.
>>> import numpy as np
>>> from torchdp.sklearn import PrivateRidge
>>> X = np.random.default_rng(0).uniform(-0.5, 0.5, (10_000, 3))
>>> ridge = PrivateRidge(epsilon=1.0, bound=1.0, label_bound=1.0).fit(X, X @ [0.5, 0.0, -0.5])
>>> ridge.predict(X[:2]).shape, ridge.guarantee_.epsilon
((2,), 1.0)

Bounds, classes and the numbers of rows and columns are public: state them without the data. What is
fitted has ``guarantee_``; each fit of a search or a cross-validation spends its own. Scores on the
training data are not private.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.density import CentralKDE, InnerProduct, ShuffledClasses, class_counts, nearest_centre
from torchdp.noise import SeededNoise, source
from torchdp.privacy import Model, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol.rounded_sum import BLOCK, RoundedSum, released_guarantee
from torchdp.randomizers import RandomizedResponse
from torchdp.regression import GramRelease, adaptive_ridge, top_directions
from torchdp.regression.errors import shortened

with checks.needing("torchdp.sklearn", "scikit-learn"):
    from sklearn import base
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["PrivateClassMeans", "PrivateLogisticRegression", "PrivatePCA", "PrivateRidge"]

# Of the gradient steps of a logistic regression, and relative slack for rounding of norms.
MOMENTUM = 0.8
SLACK = 1e-9


@dataclass(eq=False, repr=False, kw_only=True)
class Curated(base.BaseEstimator):
    """What they have in common.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
        bound: the largest l_2 norm of a row, public; longer ones are shortened to it.
        random_state: None is the system's cipher; a seed repeats the noise, for tests, and gives no
            privacy.

    ``fit`` warns where rows or labels are beyond their bounds. The warning depends on the data, is
    for the curator's own screen, and is not part of the release: do not publish it, nor bounds that
    were chosen by it.
    """

    epsilon: float
    delta: float = 1e-6
    bound: float
    random_state: Any = None

    def _given(self, X: Any, *y: Any, **how: Any) -> tuple[Tensor, Any, SeededNoise | None]:
        """Rows, shortened, and y where there is one, both checked by scikit-learn; the noise."""
        labels = None
        X = validate_data(self, X, *y, dtype=np.float64, **how)
        if y:
            X, labels = X
        # torch warns of arrays that it must not write to.
        rows = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        bound = checks.positive("bound", self.bound)
        _warn_beyond("rows", torch.linalg.vector_norm(rows, dim=-1), "bound", bound)
        noise = None
        # What repeats hides nobody: for tests.
        if self.random_state is not None:
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            noise = SeededNoise(int(seed))
        return shortened(rows, bound), labels, noise

    def _released(
        self, rows: Tensor, bound: float, label_bound: float | None, noise: SeededNoise | None
    ) -> None:
        """The second moments of [A b], or of A where there is no label_bound."""
        n = len(rows)
        d = rows.shape[1] - (label_bound is not None)
        gram = GramRelease(n, d, bound, self.epsilon, self.delta, label_bound, model=Model.CENTRAL)
        self.moments_: Any = gram.estimate(rows, noise=noise)
        self.guarantee_ = gram.guarantee

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return cast(np.ndarray, validate_data(self, X, dtype=np.float64, reset=False))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRidge(base.RegressorMixin, Curated):
    """Ridge regression from one release of A^T A and A^T b, regularized by ``adaptive_ridge``.

    Args:
        label_bound: labels are cut to it in size.
        alpha: the least weight of |w|^2.
        fit_intercept: a column of the constant ``bound`` is added.

    After ``fit``: ``coef_``, ``intercept_``, ``moments_``, ``guarantee_``. Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one row and label, their number public: that of
        :class:`torchdp.regression.GramRelease`, for rows of norm bound, or with a constant sqrt 2
        bound.
    Source: Dwork, Talwar, Thakurta, Zhang (2014), Algorithm 1; Balle, Wang (2018), Theorem 8.
    """

    label_bound: float
    alpha: float = 1.0
    fit_intercept: bool = True

    def fit(self, X: Any, y: Any) -> "PrivateRidge":
        """X: (n, d); y: (n,)."""
        rows, y, noise = self._given(X, y, y_numeric=True)
        labels = torch.from_numpy(y.astype(np.float64))
        _warn_beyond("labels", labels.abs(), "label_bound", self.label_bound)
        constant = rows.new_full((len(rows), int(self.fit_intercept)), self.bound)
        rows = torch.cat([rows, constant, labels[:, None]], 1)
        # The constant is as large as a row's norm may be: the two together have sqrt 2 of it.
        bound = self.bound * math.sqrt(1 + self.fit_intercept)
        self._released(rows, bound, self.label_bound, noise)
        weights = adaptive_ridge(self.moments_, self.alpha).numpy()
        d = self.n_features_in_
        self.coef_ = weights[:d]
        # The column was ``bound``, not 1; without one the sum is empty, and 0.
        self.intercept_ = float(weights[d:].sum() * self.bound)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n, d) -> (n,)."""
        return self._checked(X) @ self.coef_ + self.intercept_


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePCA(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, Curated):
    """The directions of largest second moment from one release of A^T A.

    Not centred: subtract a public centre first.

    Args:
        n_components: how many directions.

    After ``fit``: ``components_`` (n_components, d), orthonormal, the largest first; ``moments_``,
    ``guarantee_``. Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one row, their number public: that of
    ``GramRelease``.
    Source: Dwork, Talwar, Thakurta, Zhang (2014), Algorithm 1.
    """

    n_components: int = 1

    def fit(self, X: Any, y: Any = None) -> "PrivatePCA":
        """X: (n, d); y is not read."""
        rows, _, noise = self._given(X)
        self._released(rows, self.bound, None, noise)
        self.components_ = top_directions(self.moments_.gram, self.n_components).mT.numpy()
        # By this the mixin numbers the names of the columns.
        self._n_features_out = self.n_components
        return self

    def transform(self, X: Any) -> np.ndarray:
        """(n, d) -> (n, n_components)."""
        return self._checked(X) @ self.components_.T


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassMeans(base.ClassifierMixin, Curated):
    """The class whose mean is nearest, from one noisy mean of each class.

    Args:
        classes: all labels that there can be, public; needed with ``label_epsilon``. Others in y
            are refused. None: those of y.
        label_epsilon: labels go through randomized response at this epsilon first; None: who is in
            which class is public, and so are the classes.

    After ``fit``: ``classes_``, ``densities_``, ``guarantee_``. Raises
    ValueError.

    Guarantees: that of :class:`torchdp.density.ShuffledClasses` of curators: (epsilon, delta)-DP
    for replacing one
        row, labels as they are; with ``label_epsilon`` (epsilon + label_epsilon, delta)-DP for a
        row and its label.
    Source: Papyan, Han, Donoho (2020), nearest class centre; Balle, Wang (2018), Theorem 8.
    """

    classes: Any = None
    label_epsilon: float | None = None

    def fit(self, X: Any, y: Any) -> "PrivateClassMeans":
        """X: (n, d); y: (n,), of any labels."""
        rows, y, noise = self._given(X, y)
        if self.label_epsilon is not None and self.classes is None:
            raise ValueError(
                "classes must state all labels that there can be, "
                "since label_epsilon makes y private"
            )
        self.classes_, labels = _labelled(y, self.classes)
        response = None
        if self.label_epsilon is not None:
            response = RandomizedResponse(len(self.classes_), self.label_epsilon)
            # First of all: what follows, the sizes of classes too, sees only these.
            labels = response.randomize(labels, noise=noise)
        features = InnerProduct(rows.shape[1]).draw(1, generator=torch.Generator())  # draws nothing
        counts = class_counts(labels, len(self.classes_)).tolist()
        kdes = tuple(CentralKDE.calibrated(features, n, self.epsilon, self.delta) for n in counts)
        classes = ShuffledClasses(kdes, response)
        # Rows in units of the bound have norm 1 at most.
        self.densities_ = classes.estimate((rows / self.bound, labels), noise=noise)
        self.guarantee_ = classes.guarantee
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n, d) -> (n,), of ``classes_``."""
        # In the unit in which the means were released.
        rows = torch.from_numpy(self._checked(X) / self.bound)
        return self.classes_[nearest_centre(self.densities_, rows).numpy()]


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(base.ClassifierMixin, Curated):
    """Multinomial logistic regression by noisy gradients of all rows.

    In units of the bound a row x and a constant of 1 have norm sqrt 2, and the gradient of a row's
    loss, x (p - e_y)^T, norm at most 2: nothing is clipped. Steps of 1, which is 1 over the largest
    curvature, with momentum; the answer is the mean of the second half of them.

    Args:
        classes: all labels that there can be, public; others in y are refused. None: those of y,
            which then are public.
        steps: each a release of one gradient, under noise of deviation in proportion to sqrt steps.

    After ``fit``: ``coef_`` (classes, d), ``intercept_``, ``classes_``, ``guarantee_``. Raises
    ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one row and its label, their number public: each
        gradient moves by twice its largest norm at most, and Gaussian noise of all steps together
        is one Gaussian mechanism.
    Source: Bassily, Smith, Thakurta (2014), Algorithm 1, of all rows at each step; Dong, Roth, Su
    (2022), Corollary 3.3; Balle, Wang (2018), Theorem 8.
    """

    classes: Any = None
    steps: int = 100

    def fit(self, X: Any, y: Any) -> "PrivateLogisticRegression":
        """X: (n, d); y: (n,), of any labels."""
        rows, y, seeded = self._given(X, y)
        steps = checks.integer("steps", self.steps, 1)
        self.classes_, labels = _labelled(y, self.classes)
        # In units of the bound, beside a constant 1.
        rows = torch.nn.functional.pad(rows / self.bound, (0, 1), value=1.0)
        chosen = torch.nn.functional.one_hot(labels, len(self.classes_)).double()
        weights = torch.zeros(rows.shape[1], len(self.classes_), dtype=torch.float64)
        # Of x and the constant 2^{1/2}, of p - e_y 2^{1/2}; slack for their rounding.
        norm = 2 * (1 + SLACK)
        multiplier = gaussian_sigma(self.epsilon, self.delta * ROUNDED)
        size = weights.numel()
        # As many Gaussian mechanisms of mu/steps^{1/2} are one of mu.
        sums = RoundedSum.least(multiplier * math.sqrt(steps), 2 * norm, norm, size)
        draws = source(seeded, rows.device)
        ahead = weights
        kept = torch.zeros_like(weights)
        for step in range(steps):
            blocks = zip(rows.split(BLOCK), chosen.split(BLOCK), strict=True)
            whole = sums.blocks((_gradient(ahead, *block).flatten() for block in blocks), len(rows))
            gradient = sums.released(whole, draws).view_as(weights) / len(rows)
            following = ahead - gradient
            ahead = following + MOMENTUM * (following - weights)
            weights = following
            if step >= steps // 2:
                kept += weights
        mean = (kept / (steps - steps // 2)).mT.numpy()
        self.coef_ = mean[:, :-1] / self.bound
        self.intercept_ = mean[:, -1]
        self.guarantee_ = released_guarantee(multiplier, self.delta, steps * size)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, d) -> (n, classes)."""
        scores = torch.from_numpy(self._checked(X) @ self.coef_.T + self.intercept_)
        return cast(np.ndarray, scores.softmax(1).numpy())

    def predict(self, X: Any) -> np.ndarray:
        """(n, d) -> (n,), of ``classes_``."""
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(1)]


def _gradient(weights: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """Of the summed loss of rows (n, d) of classes ``chosen`` (n, k), in the weights (d, k)."""
    return rows.mT @ ((rows @ weights).softmax(1) - chosen)


def _labelled(y: Any, classes: Any) -> tuple[np.ndarray, Tensor]:
    """The classes, those stated or those of y, and each label's place. Raises ValueError."""
    check_classification_targets(y)
    classes = np.unique(y if classes is None else classes)
    if not np.isin(y, classes).all():
        raise ValueError("y must hold labels that are in classes, and no others")
    return classes, torch.from_numpy(np.searchsorted(classes, y))


def _warn_beyond(what: str, sizes: Tensor, name: str, bound: float) -> None:
    # How many they are is not said: less of the data in logs than diffprivlib's warning has.
    if bool((sizes > bound).any()):
        warnings.warn(f"some {what} are beyond {name} = {bound:g} and are cut to it", stacklevel=4)
