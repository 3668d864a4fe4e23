"""multi-freq-ldpy: one user at a time, estimates clipped at 0 and normalised."""

import numpy as np
import side
from multi_freq_ldpy.pure_frequency_oracles import GRR, SS, UE


def randomized_response(n, k, epsilon):
    def reports(x):
        return [GRR.GRR_Client(value, k, epsilon) for value in x]

    x = side.crowd(n, k)
    return (
        lambda: {"mended": GRR.GRR_Aggregator_MI(reports(x), k, epsilon)},
        lambda: np.bincount(reports([0] * n), minlength=k),
    )


def unary_encoding(n, k, epsilon):
    def reports(x):
        return [UE.UE_Client(value, k, epsilon, True) for value in x]

    x = side.crowd(n, k)
    return (
        lambda: {"mended": UE.UE_Aggregator_MI(reports(x), epsilon, True)},
        lambda: sum(reports([0] * n)),
    )


def subset_selection(n, k, epsilon):
    def reports(x):
        return [SS.SS_Client(value, k, epsilon) for value in x]

    x = side.crowd(n, k)
    return (
        lambda: {"mended": SS.SS_Aggregator_MI(reports(x), k, epsilon)},
        lambda: np.bincount(np.concatenate(reports([0] * n)), minlength=k),
    )


if __name__ == "__main__":
    side.main(
        "multi-freq-ldpy",
        {
            "randomized response": randomized_response,
            "unary encoding": unary_encoding,
            "subset selection": subset_selection,
        },
    )
