"""scikit-learn: the same regression without privacy, the floor of what privacy costs."""

import side
from sklearn.linear_model import LinearRegression


def ridge(n, d, epsilon, delta):
    X, y = side.table(n, d)
    return lambda: LinearRegression(fit_intercept=False).fit(X, y).coef_


if __name__ == "__main__":
    side.main("scikit-learn", {"ridge": ridge})
