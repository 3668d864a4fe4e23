"""mbi: marginals of a graphical model that fits the noisy ones."""

import numpy as np
import side
from mbi import Domain, LinearMeasurement, estimation


def consistent(n, size, sigma):
    _, noisy = side.marginals(n, size, sigma)
    domain = Domain(("0", "1", "2"), (size, size, size))
    pairs = [tuple(map(str, pair)) for pair in side.PAIRS]

    def work():
        asked = [
            LinearMeasurement(y, pair, stddev=sigma) for pair, y in zip(pairs, noisy, strict=True)
        ]
        model = estimation.MirrorDescent().estimate(domain, asked, known_total=n)
        return np.stack([np.asarray(model.project(pair).datavector()) for pair in pairs])

    return work


if __name__ == "__main__":
    side.main("mbi", {"consistent marginals": consistent})
