"""scikit-learn's faces of curators: its conventions hold, and what is released is as private as it
says.
"""

import math

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import check_estimator

from torchdp import privacy
from torchdp import sklearn as ours
from torchdp.protocol.rounded_sum import RoundedSum
from torchdp.sklearn import PrivateClassMeans, PrivateLogisticRegression, PrivatePCA, PrivateRidge

# so little noise that scores are those of the data
CLEAR = {"epsilon": 1e4, "bound": 10.0, "random_state": 1}
BUDGET = {
    "epsilon": 0.5,
    "delta": 1e-5,
    "bound": 2.0,
    "random_state": 1,
}
ACROSS = [0.0, 2.0]
ALONG = [2.0, 0.0]
SIXTY = [1.0, math.sqrt(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        PrivateRidge(**CLEAR, label_bound=10.0, alpha=1e-3),
        PrivatePCA(**CLEAR),
        PrivateClassMeans(**CLEAR),
        PrivateLogisticRegression(**CLEAR),
    ],
)
def test_scikit_learns_own_checks(estimator):
    told = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(told) > 40 and {one["check_name"] for one in told if one["status"] != "passed"} == {
        "check_array_api_input"  # skipped: it asks for an array library beside numpy
    }


@pytest.mark.parametrize(
    ("estimator", "one", "other"),
    [
        (
            PrivateRidge(**BUDGET, label_bound=7.0),
            (ALONG, 7.0),
            (ACROSS, -7.0),
        ),
        (
            PrivateRidge(**BUDGET, label_bound=7.0, fit_intercept=False),
            (ALONG, 7.0),
            (SIXTY, -7.0),
        ),
        (
            PrivatePCA(**BUDGET),
            (ALONG, 0),
            (ACROSS, 0),
        ),
        (
            PrivateClassMeans(**BUDGET),
            (ALONG, 0),
            ([-2.0, 0.0], 0),
        ),
    ],
)
def test_guarantee_a_replaced_row_moves_the_release_as_far_as_its_noise_is_made_for(
    estimator, one, other
):
    """Under equal noise, in deviations of it: mu = 1/gaussian_sigma(epsilon, delta), which the
    worst pair attains.
    """

    def released(row, label, times=1.0):
        X = np.vstack([np.zeros((6, 2)), np.array(row) * times])
        estimator.fit(X, np.array([0, 1, 0, 1, 0, 1, label * times]))
        return vars(estimator).get("moments_") or estimator.densities_

    assert estimator.fit(np.eye(4, 2), [0, 1, 0, 1]).guarantee_.epsilon <= 0.5
    first = released(*one)
    second = released(*other)
    mu = 1 / privacy.gaussian_sigma(0.5, 1e-5)
    change = (first.value - second.value) / first.standard_error
    # one user moves the release by nearly what is allowed
    assert 0.99 * mu < change.norm() <= mu * (1 + 1e-9)
    beyond = (
        released(*one, times=1e3)
        if not isinstance(estimator, PrivateClassMeans)
        else released([2e3, 0], 0)
    )
    # shortened and cut to the bounds
    assert (beyond.value - first.value).abs().max() < 1e-6


def test_guarantee_gradients_of_a_logistic_regression_are_one_gaussian_mechanism(monkeypatch):
    """Two users as far apart as any, at weights that are wrong about both: sum of mu^2."""
    noise = []
    kept = RoundedSum.released

    def recorded(self, *given):
        noise.append(self.sigma)
        return kept(self, *given)

    monkeypatch.setattr(RoundedSum, "released", recorded)
    PrivateLogisticRegression(**BUDGET, steps=7).fit([ALONG, ACROSS], [0, 1])
    # So steep that two rows on either side of a line are sure of either class, both wrong.
    steep = torch.tensor([[0.0, 0.0], [1e6, 0.0], [0.0, 0.0]]).double()
    row = torch.tensor([[math.sqrt(1 - 1e-6), 1e-3, 1.0]]).double()
    label = torch.eye(2).double()
    one = ours._gradient(steep, row, label[1:])
    other = ours._gradient(steep, row * torch.tensor([1, -1, 1]), label[:1])
    apart = float((one - other).norm())
    mu = math.sqrt(sum((apart / sigma) ** 2 for sigma in noise))
    allowed = 1 / privacy.gaussian_sigma(0.5, 1e-5)
    assert len(noise) == 7
    assert 0.999 * allowed < mu <= allowed * (1 + 1e-9)


def test_a_logistic_regression_finds_the_line():
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (20_000, 2))
    chance = 1 / (1 + np.exp(-4 * X @ [1.0, -1.0] - 1))
    y = np.where(draws.random(20_000) < chance, "yes", "no")
    model = PrivateLogisticRegression(epsilon=2.0, bound=1.5, random_state=1, steps=300).fit(X, y)
    w = model.coef_[1] - model.coef_[0]
    assert np.allclose([*w, np.diff(model.intercept_)[0]], [4, -4, 1], atol=0.6)
    assert abs(model.predict_proba(X)[:, 1].mean() - (y == "yes").mean()) < 0.02
    with pytest.raises(ValueError, match="labels that are in classes"):
        PrivateLogisticRegression(epsilon=1.0, bound=1.0, classes=["yes"]).fit(X, y)


def test_labels_are_hidden_where_they_are_private():
    X = np.repeat([[1.0], [-1.0]], 300, 0)
    model = PrivateClassMeans(epsilon=50.0, bound=1.0, random_state=1).fit(X, X[:, 0])
    # at epsilon 50 the noise is small
    assert np.allclose(model.densities_.value[:, 0], [-1, 1], atol=0.05)
    assert 0 <= 50 - model.guarantee_.epsilon < 1e-6
    # each class is a mixture of both
    model.set_params(label_epsilon=0.01, classes=[-1.0, 1.0]).fit(X, X[:, 0])
    assert (model.densities_.value.abs() < 0.3).all()
    assert 0 <= 50.01 - model.guarantee_.epsilon < 1e-6


def test_a_line_and_a_direction_are_found():
    X = np.random.default_rng(1).uniform(-0.5, 0.5, (20_000, 2))
    ridge = PrivateRidge(epsilon=1.0, bound=1.0, random_state=1, label_bound=3.0).fit(
        X, X @ [1.0, 2.0] + 0.5
    )
    # at this epsilon the noise is small
    assert np.allclose([*ridge.coef_, ridge.intercept_], [1, 2, 0.5], atol=0.15)
    X *= [1.0, 0.2]
    pca = PrivatePCA(epsilon=1.0, bound=1.0, random_state=1).fit(X)
    assert abs(pca.components_[0, 0]) > 0.99
    assert list(pca.get_feature_names_out()) == ["privatepca0"]
    assert np.abs(pca.transform(X) @ pca.components_ - X).max() < 0.15


ESTIMATORS = [
    PrivateRidge(**BUDGET, label_bound=7.0),
    PrivatePCA(**BUDGET),
    PrivateClassMeans(**BUDGET),
    PrivateClassMeans(**BUDGET, label_epsilon=1.0, classes=[0, 1, 2, 3]),
    PrivateLogisticRegression(**BUDGET, classes=[0, 1, 2, 3], steps=3),
]
RELEASED = {"coef_", "intercept_", "moments_", "components_", "densities_"}


def public(estimator):
    return {
        name: str(one)
        for name, one in vars(estimator).items()
        if name.endswith("_") and name not in RELEASED
    }


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_guarantee_what_is_not_released_is_the_same_for_neighbours(estimator):
    """Data that differ in a row, and in its label where that is private, to one that no other row
    has.
    """
    X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    y = np.arange(400) % 3
    other = X.copy()
    labels = y.copy()
    other[7] = -X[7] / 2
    if not isinstance(estimator, PrivateClassMeans) or estimator.label_epsilon is not None:
        labels[7] = 3
    first = public(estimator.fit(X, y))
    # of the responses' classes
    counts = {"guarantee_"} if estimator.get_params().get("label_epsilon") else set()
    second = public(estimator.fit(other, labels))
    assert {"guarantee_", "n_features_in_"} <= set(first) == set(second)
    assert all(first[name] == second[name] for name in set(first) - counts)


def test_classes_are_stated_where_labels_are_private():
    X = np.zeros((40, 2))
    y = np.arange(40) % 2
    with pytest.raises(ValueError, match="classes must state all labels"):
        PrivateClassMeans(**BUDGET, label_epsilon=1.0).fit(X, y)
    with pytest.raises(ValueError, match="y must hold labels that are in classes"):
        PrivateClassMeans(**BUDGET, label_epsilon=1.0, classes=[1, 2]).fit(X, y)
