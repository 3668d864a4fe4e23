"""pure-ldp: one user at a time, raw estimates."""

import numpy as np
import side
from pure_ldp.frequency_oracles.direct_encoding import DEClient, DEServer
from pure_ldp.frequency_oracles.hadamard_response import (
    HadamardResponseClient,
    HadamardResponseServer,
)
from pure_ldp.frequency_oracles.unary_encoding import UEClient, UEServer


def frequencies(client, server, support=None, **options):
    def row(n, k, epsilon):
        x = side.crowd(n, k)
        same = {"index_mapper": lambda value: value}
        asks = {"hash_funcs": None} if client is HadamardResponseClient else options
        user = client(epsilon, k, **asks, **same)
        analyst = server(epsilon, k, **options, **same)

        def work():
            analyst.reset()
            for value in x:
                analyst.aggregate(user.privatise(value))
            counts = analyst.estimate_all(range(k), suppress_warnings=True)
            return {"raw": np.array(counts) / n}

        def reports():
            return sum(support(user.privatise(0), k) for _ in range(n))

        return (work, reports) if support else work

    return row


def thresholds(n, k, epsilon):
    shares = frequencies(UEClient, UEServer, use_oue=True)(n, k, epsilon)
    return lambda: np.stack([np.cumsum(shares()["raw"]) for _ in range(10)])


if __name__ == "__main__":
    side.main(
        "pure-ldp",
        {
            "randomized response": frequencies(
                DEClient, DEServer, lambda said, k: np.arange(k) == said
            ),
            "unary encoding": frequencies(UEClient, UEServer, lambda said, k: said, use_oue=True),
            "thresholds": thresholds,
            "Hadamard response": frequencies(HadamardResponseClient, HadamardResponseServer),
        },
    )
