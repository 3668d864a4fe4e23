"""cvxpy with SCS: the semidefinite program of gamma_2, what solves it when nothing was built for
it.
"""

import cvxpy as cp
import numpy as np
import side


def program(n):
    def work():
        X = cp.Variable((2 * n, 2 * n), PSD=True)
        t = cp.Variable()
        problem = cp.Problem(cp.Minimize(t), [X[:n, n:] == np.tri(n), cp.diag(X) <= t])
        problem.solve(solver="SCS", eps=1e-5, max_iters=20_000)
        values, vectors = np.linalg.eigh(X.value[n:, n:])
        roots = np.sqrt(np.maximum(values, 1e-12))
        return (vectors * roots).T

    return work


if __name__ == "__main__":
    side.main("cvxpy", {"semidefinite program": program})
