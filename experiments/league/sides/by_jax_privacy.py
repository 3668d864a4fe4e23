"""jax-privacy: dense strategies for prefix sums, in float64, its reduction as it documents it."""

import jax
import numpy as np
import side
from jax_privacy.matrix_factorization import dense


def prefix(reduction):
    return lambda n: lambda: np.asarray(dense.optimize(n, epochs=1, reduction_fn=reduction))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    side.main(
        "jax-privacy",
        {
            "prefix sums, mean": prefix(jax.numpy.mean),
            "prefix sums, max": prefix(jax.numpy.max),
            "four epochs": lambda n, epochs: lambda: np.asarray(dense.optimize(n, epochs=epochs)),
        },
    )
