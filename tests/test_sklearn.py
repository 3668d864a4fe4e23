"""scikit-learn's faces of curators: its conventions hold, and what is released is as private as it says."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import check_estimator

from torchdp import privacy
from torchdp.sklearn import PrivateClassMeans, PrivatePCA, PrivateRidge

CLEAR = {"epsilon": 1e4, "bound": 10.0, "random_state": 1}  # so little noise that scores are those of the data
BUDGET = {"epsilon": 0.5, "delta": 1e-5, "bound": 2.0, "random_state": 1}
ACROSS, ALONG, SIXTY = [0.0, 2.0], [2.0, 0.0], [1.0, math.sqrt(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [PrivateRidge(**CLEAR, label_bound=10.0, alpha=1e-3), PrivatePCA(**CLEAR), PrivateClassMeans(**CLEAR)],
)
def test_scikit_learns_own_checks(estimator):
    told = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(told) > 40 and {one["check_name"] for one in told if one["status"] != "passed"} == {
        "check_array_api_input"  # skipped: it asks for an array library beside numpy
    }


@pytest.mark.parametrize(
    ("estimator", "one", "other"),
    [
        (PrivateRidge(**BUDGET, label_bound=7.0), (ALONG, 7.0), (ACROSS, -7.0)),
        (PrivateRidge(**BUDGET, label_bound=7.0, fit_intercept=False), (ALONG, 7.0), (SIXTY, -7.0)),
        (PrivatePCA(**BUDGET), (ALONG, 0), (ACROSS, 0)),
        (PrivateClassMeans(**BUDGET), (ALONG, 0), ([-2.0, 0.0], 0)),
    ],
)
def test_guarantee_a_replaced_row_moves_the_release_as_far_as_its_noise_is_made_for(estimator, one, other):
    """Under equal noise, in deviations of it: mu = 1/gaussian_sigma(epsilon, delta), which the worst pair attains."""

    def released(row, label, times=1.0):
        X = np.vstack([np.zeros((6, 2)), np.array(row) * times])
        estimator.fit(X, np.array([0, 1, 0, 1, 0, 1, label * times]))
        return vars(estimator).get("moments_") or estimator.densities_

    assert estimator.fit(np.eye(4, 2), [0, 1, 0, 1]).guarantee_.epsilon <= 0.5
    first, second = released(*one), released(*other)
    mu = 1 / privacy.gaussian_sigma(0.5, 1e-5)
    assert 0.99 * mu < float(((first.value - second.value) / first.standard_error).norm()) <= mu * (1 + 1e-9)
    beyond = released(*one, times=1e3) if not isinstance(estimator, PrivateClassMeans) else released([2e3, 0], 0)
    assert float((beyond.value - first.value).abs().max()) < 1e-6  # shortened and cut to the bounds


def test_digits_are_told_apart_by_their_private_means():
    X, y = load_digits(return_X_y=True)
    names = np.array(["zero", "one", "two"])
    X, y = X[y < 3] / 64, names[y[y < 3]]
    model = PrivateClassMeans(epsilon=2.0, delta=1e-5, random_state=1).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.9 and set(model.predict(X)) == set(names)
    assert str(model) == "PrivateClassMeans(delta=1e-05, epsilon=2.0, random_state=1)"


def test_labels_are_hidden_where_they_are_private():
    X = np.repeat([[1.0], [-1.0]], 300, 0)
    model = PrivateClassMeans(epsilon=50.0, random_state=1).fit(X, X[:, 0])
    assert np.allclose(model.densities_.value[:, 0], [-1, 1], atol=0.05)
    assert 0 <= 50 - model.guarantee_.epsilon < 1e-6
    model.set_params(label_epsilon=0.01).fit(X, X[:, 0])  # each class is a mixture of both
    assert (model.densities_.value.abs() < 0.3).all() and 0 <= 50.01 - model.guarantee_.epsilon < 1e-6


def test_a_line_and_a_direction_are_found():
    X = np.random.default_rng(1).uniform(-0.5, 0.5, (20_000, 2))
    ridge = PrivateRidge(random_state=1, label_bound=3.0).fit(X, X @ [1.0, 2.0] + 0.5)
    assert np.allclose([*ridge.coef_, ridge.intercept_], [1, 2, 0.5], atol=0.15)
    X *= [1.0, 0.2]
    pca = PrivatePCA(random_state=1).fit(X)
    assert abs(pca.components_[0, 0]) > 0.99 and list(pca.get_feature_names_out()) == ["privatepca0"]
    assert np.abs(pca.transform(X) @ pca.components_ - X).max() < 0.15
