"""diffprivlib: a curator's mechanisms, one value at a time."""

import warnings

import side
from diffprivlib.mechanisms import GaussianAnalytic, GaussianDiscrete
from diffprivlib.models import LinearRegression


def release(n, epsilon, delta):
    def work():
        mechanism = GaussianDiscrete(epsilon=epsilon, delta=delta, sensitivity=1)
        return [mechanism.randomise(0) for _ in range(n)]

    return work


def ridge(n, d, epsilon, delta):
    X, y = side.table(n, d)
    bounds = (-(d**-0.5), d**-0.5)

    def work():
        model = LinearRegression(
            epsilon=epsilon, bounds_X=bounds, bounds_y=(-1, 1), fit_intercept=False
        )
        return model.fit(X, y).coef_

    return work


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    side.main(
        "diffprivlib",
        {
            "Gaussian calibration": lambda **asked: (
                lambda: GaussianAnalytic(**asked, sensitivity=1)._scale
            ),
            "noisy integers": release,
            "ridge": ridge,
        },
    )
