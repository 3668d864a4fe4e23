"""OpenDP: exact samplers; randomized response decoded here, by its own probabilities."""

import math

import numpy as np
import opendp.prelude as dp
import side

dp.enable_features("contrib")


def randomized_response(n, k, epsilon):
    x = side.crowd(n, k).tolist()
    own = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    respond = dp.m.make_randomized_response(list(range(k)), own)
    other = (1 - own) / (k - 1)

    def reports(values):
        return np.bincount([respond(value) for value in values], minlength=k)

    def work():
        return {"raw": (reports(x) / n - other) / (own - other)}

    return work, lambda: reports([0] * n)


def calibrated(space, d_in, epsilon, delta):
    def make(scale):
        noise = dp.m.make_gaussian(*space, scale=scale)
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(noise), delta)

    return dp.binary_search_param(make, d_in, (epsilon, delta))


def calibration(epsilon, delta):
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    return lambda: calibrated(space, 1.0, epsilon, delta)


def release(n, epsilon, delta):
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    zeros = [0] * n
    return lambda: dp.m.make_gaussian(*space, scale=calibrated(space, 1.0, epsilon, delta))(zeros)


if __name__ == "__main__":
    side.main(
        "opendp",
        {
            "randomized response": randomized_response,
            "Gaussian calibration": calibration,
            "noisy integers": release,
        },
    )
