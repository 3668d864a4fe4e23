"""numpy: the law of randomized response's counts as one would write it down."""

import math

import numpy as np
import side


def response(n, k, epsilon):
    counts = side.counts(n, k)
    rng = np.random.default_rng()
    q = 1 / (math.exp(epsilon) + k - 1)

    def work():
        kept = rng.binomial(counts, 1 - k * q)  # the others' reports are uniform over all types
        reports = kept + rng.multinomial(n - kept.sum(), np.full(k, 1 / k))
        return (reports / n - q) / (1 - k * q)

    return work


if __name__ == "__main__":
    side.main("numpy", {"1e9 users at once": response})
