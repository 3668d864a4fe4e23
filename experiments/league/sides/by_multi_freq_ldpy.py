"""multi-freq-ldpy: one user at a time, estimates clipped at 0 and normalised."""

import numpy as np
import side
from multi_freq_ldpy.pure_frequency_oracles import GRR, SS, UE


def randomized_response(n, k, epsilon):
    x = side.crowd(n, k)
    return lambda: {
        "mended": GRR.GRR_Aggregator_MI([GRR.GRR_Client(v, k, epsilon) for v in x], k, epsilon)
    }, lambda: np.bincount([GRR.GRR_Client(0, k, epsilon) for _ in range(n)], minlength=k)


def unary_encoding(n, k, epsilon):
    x = side.crowd(n, k)
    return lambda: {
        "mended": UE.UE_Aggregator_MI([UE.UE_Client(v, k, epsilon, True) for v in x], epsilon, True)
    }, lambda: sum(UE.UE_Client(0, k, epsilon, True) for _ in range(n))


def subset_selection(n, k, epsilon):
    x = side.crowd(n, k)
    return lambda: {
        "mended": SS.SS_Aggregator_MI([SS.SS_Client(v, k, epsilon) for v in x], k, epsilon)
    }, lambda: sum(np.bincount(SS.SS_Client(0, k, epsilon), minlength=k) for _ in range(n))


if __name__ == "__main__":
    side.main(
        "multi-freq-ldpy",
        {
            "randomized response": randomized_response,
            "unary encoding": unary_encoding,
            "subset selection": subset_selection,
        },
    )
