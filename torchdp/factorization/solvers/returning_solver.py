"""The iterations for users who come back: in one step of each epoch, or in steps that keep apart.

Of epochs a fixed point of row weights and of one block for each class; of steps that keep apart one
of weights on sets of steps, which are found by column generation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm, scaled_weights
from torchdp.factorization.solvers.iteration import History, Schedule, simplex
from torchdp.factorization.solvers.spectrum import SQUARE_TOLERANCE, right_vectors
from torchdp.threads import one_thread

STEP = 0.9  # exponent of the update of M: half of that of single columns' weights
# rows' weights stay above FLOOR * tol / m, which costs the lower bound about FLOOR * tol
FLOOR = 0.1
SPREAD = 40.0  # eigenvalues of M keep a ratio below e^SPREAD
# share of the largest below which a singular value is not resolved: any small one will do
SMALLEST = 1e-20


# left, right, row weights, the blocks of M^{1/2} and the iterations, for columns sorted by class
Attempt = tuple[Tensor, Tensor, Tensor, list[Tensor], int]
# Exponent of the updates.
EXPONENT = 0.6
# Iterations between two searches for sets, how many sets one adds at most, and the weight that they
# get together.
SEARCH = 14
ADDED = 200
SHARE = 0.02
# Weight below which a set is left out.
DROPPED = 1e-6
# Least weight of a row, over the mean.
LEAST = 1e-9
# Share of the largest eigenvalue of M below which one is rounding.
RESOLVED = 1e-14


def attempts(
    A: Tensor, shapes: list[tuple[int, int]], p: float, tol: float, max_iterations: int
) -> Iterator[Attempt]:
    """The iteration of :func:`factorize_epochs` on A of rank n, largest entry about 1, columns
    sorted by class.

    Yields its best where the gap seems to be below ``tol``, and now and then before that, as the
    exact fixed point does: the caller judges, and takes the next where the certificate is open.
    shapes: (classes, columns of each).
    """
    weights, looks = _Weights(A, shapes, p, tol), Schedule(tol)
    upper, lower = math.inf, 0.0
    for iteration in range(1, max_iterations + 1):
        c, roots, inverses = weights.dual()
        left, right, trace = _spectral(A, c, roots, inverses)
        a, X = left.square().sum(1), [part.mT @ part for part in parts_of(right, shapes)]
        size = torch.cat([B.abs().sum((1, 2)) for B in X]).max()
        left, right, size = orthogonal_columns(A, right, X, [_unit(B) for B in weights.M]) or (
            left,
            right,
            size,
        )
        value = float(power_norm(left.norm(dim=1), p) * size.sqrt())
        if value < upper:
            upper, primal = value, (left, right)
        if trace > lower:
            lower, dual = trace, (c, roots)
        gap = upper / lower - 1
        finished = gap <= looks.within
        if looks.due(iteration, finished) or iteration == max_iterations:
            yield *primal, dual[0], dual[1], iteration
            if not looks.go_on(iteration, gap, finished):
                return
        weights.move(a, X, trace, roots)


class _Weights:
    """The weights s of the rows and M of the columns, a block mu_i C_i for each class, and how they
    move.
    """

    def __init__(self, A: Tensor, shapes: list[tuple[int, int]], p: float, tol: float) -> None:
        m, classes = len(A), sum(count for count, _ in shapes)
        self.p, self.exponent = p, 1 / conjugate(p)  # c = s^exponent
        self.s = A.new_full((m,), 1 / m)
        one = torch.eye(shapes[0][1], dtype=A.dtype, device=A.device) / classes
        self.M = [one[:k, :k].expand(count, k, k) for count, k in shapes]
        self.floor, self.history, self.step, self.previous = FLOOR * tol / m, History(8), 1.0, 0.0
        spread = [B.diagonal(dim1=1, dim2=2)[..., None].expand_as(B).flatten() for B in self.M]
        self.measure = torch.cat([self.s, *spread])

    def dual(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """c, M^{1/2} and M^{-1/2}."""
        return (
            self.s**self.exponent,
            [_power(B, 0.5) for B in self.M],
            [_power(B, -0.5) for B in self.M],
        )

    def move(self, a: Tensor, X: list[Tensor], trace: float, roots: list[Tensor]) -> None:
        """The update for squared norms a of left's rows and the blocks X of right^T right,
        extrapolated.
        """
        fell = torch.tensor(trace < self.previous * (1 - 1e-12), dtype=torch.bool, device=a.device)
        back = fell & self.history.extrapolated
        self.step = (self.step + 0.5) / 2 if fell and not back else self.step
        self.previous = 0.0 if back else trace
        moved = _scaled(
            [_grown(B, root, G / trace) for B, root, G in zip(self.M, roots, X, strict=True)]
        )
        logs = [_power(B, None) for B in self.M]
        update = [self._rows(a, trace)]
        update += [(_power(B, None) - L).flatten() for B, L in zip(moved, logs, strict=True)]
        x = torch.cat([self.s.log()] + [L.flatten() for L in logs])
        x = self.history.mix(x, self.step * torch.cat(update), self.measure, back)
        rows, *blocks = x.split([len(self.s)] + [B.numel() for B in self.M])
        self.s = simplex(rows.softmax(0), self.floor)
        self.M = _scaled(
            _exponentials([part.view_as(B) for part, B in zip(blocks, self.M, strict=True)])
        )

    def _rows(self, a: Tensor, trace: float) -> Tensor:
        """The update of the rows' logarithms."""
        if self.p == math.inf:
            rows = 2 * STEP * (a / trace).clamp_min(1e-20).log()
            # at the floor: nowhere to fall
            return torch.where((self.s <= 2 * self.floor) & (rows < 0), 0.0, rows)
        c = self.s**self.exponent
        return (
            torch.zeros_like(a)
            if self.p == 2
            else ((c * a / (c * a).sum()).clamp_min(1e-20) / self.s).log()
        )


def _spectral(
    A: Tensor, c: Tensor, roots: list[Tensor], inverses: list[Tensor]
) -> tuple[Tensor, Tensor, float]:
    """left, right with left right = A from diag(c)^{1/2} A M^{1/2} = U T V^T, and the trace norm,
    sum T.
    """
    Y = _times(A, roots)
    T, V = _right_vectors(c.sqrt()[:, None] * Y)
    return (Y @ V) * T.rsqrt(), T.sqrt()[:, None] * _times(V.mT, inverses), float(T.sum())


def classes_of(n: int, period: int, device: torch.device) -> tuple[Tensor, list[tuple[int, int]]]:
    """The columns sorted by class, longer classes first, and (number of classes, columns of
    each).
    """
    step = torch.arange(n, device=device)
    most, longer = -(-n // period), n % period
    shapes = [(longer or min(period, n), most)] + (
        [(period - longer, most - 1)] if longer and most > 1 else []
    )
    return torch.argsort(step % period, stable=True), shapes


def parts_of(right: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    """Columns of each class: (r, n) -> [(classes, r, columns)]."""
    parts = right.split([count * k for count, k in shapes], 1)
    return [
        part.unflatten(1, shape).movedim(1, 0) for part, shape in zip(parts, shapes, strict=True)
    ]


def _times(Y: Tensor, blocks: list[Tensor]) -> Tensor:
    """Y times the block diagonal matrix."""
    parts = parts_of(Y, [(len(B), B.shape[-1]) for B in blocks])
    return torch.cat(
        [(part @ B).movedim(0, 1).flatten(1) for part, B in zip(parts, blocks, strict=True)], 1
    )


def _right_vectors(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors: of the Gram matrix where its eigenvalues,
    squares, are accurate.
    """
    values, V = torch.linalg.eigh(Y.mT @ Y)
    if values[0] > SQUARE_TOLERANCE * values[-1]:
        return values.sqrt(), V
    T, V = right_vectors(Y)
    return T.clamp_min(SMALLEST * T[0]), V


def _grown(B: Tensor, root: Tensor, G: Tensor) -> Tensor:
    """G^STEP B G^STEP, scaled to B's diagonal times <G, C>^{2 STEP}, C = B over its diagonal;
    root^2 = B.
    """
    Z = _power(G, STEP) @ root  # its row norms stay positive where rounding would turn signs
    level = B.diagonal(dim1=1, dim2=2)[:, :1, None]
    inner = (G * B).sum((1, 2), keepdim=True).clamp_min(1e-20)
    return _unit(Z @ Z.mT) * level * (inner / level) ** (2 * STEP)


def _scaled(blocks: list[Tensor]) -> list[Tensor]:
    """Each block scaled to a constant diagonal, its geometric mean; all of them so that these add
    up to 1.
    """
    levels = [B.diagonal(dim1=1, dim2=2).log().mean(1).exp()[:, None, None] for B in blocks]
    total = sum(level.sum() for level in levels)
    return [_unit(B) * (level / total) for B, level in zip(blocks, levels, strict=True)]


def _unit(B: Tensor) -> Tensor:
    root = B.diagonal(dim1=1, dim2=2).rsqrt()
    return root[:, :, None] * B * root[:, None, :]


def _power(B: Tensor, exponent: float | None) -> Tensor:
    """B^exponent; its logarithm for None."""
    values, Q = torch.linalg.eigh(B)
    values = torch.maximum(values, 1e-14 * values[..., -1:])  # above what rounding makes of 0
    return (Q * (values.log() if exponent is None else values.pow(exponent))[:, None, :]) @ Q.mT


def _exponentials(logarithms: list[Tensor]) -> list[Tensor]:
    """exp(L) of each, all of them times one number: an extrapolation, however far it goes,
    overflows nothing.
    """
    spectra = [torch.linalg.eigh((L + L.mT) / 2) for L in logarithms]
    top = max(float(values.max()) for values, _ in spectra)
    return [
        (Q * (values - top).clamp_min(-SPREAD).exp()[:, None, :]) @ Q.mT for values, Q in spectra
    ]


def orthogonal_columns(
    A: Tensor, right: Tensor, blocks: list[Tensor], correlations: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """left, right', S^2: left right' = A, X' = right'^T right' diagonal in each class, S^2 the sum
    of X' over a class.

    For X = right^T right and its block X_i of class i, any y_i with diag(y_i) >= X_i has max <X_i,
    C> <= sum y_i over correlation matrices C, with equality for the best y_i (duality of
    semidefinite programs). X' is X with diag(y_i) for X_i: then X' >= X, so that no squared error
    (A X'^{-1} A^T)_tt grows, and its S^2 is max_i sum y_i. So nothing is lost where the columns of
    a class are orthogonal, whatever the errors' norm.

    y_i: (X_i C)_ss for the ``correlations`` C at hand, at least X_ss, times what makes diag(y_i) >=
    X_i; or the sums of abs(X_i)'s rows where these add up to less. Then y_i grows until all classes
    have one sum.

    A: (m, n), right: (n, n), columns sorted by class; blocks and correlations: (classes, k, k) for
    each k. None where rounding leaves no Cholesky factor of X'.
    Guarantees: S^2 is attained by a user, and at most the largest sum of abs(X_i); no row of left
    is longer than one
        of A right^{-1}, up to rounding.
    Source: here.
    """
    bounds = [_diagonals(X, C) for X, C in zip(blocks, correlations, strict=True)]
    size = torch.stack([y.sum(1).max() for y in bounds]).max()
    y = torch.cat([(y * (size / y.sum(1, keepdim=True))).flatten() for y in bounds])
    sizes = torch.tensor(
        [part.shape[1] for part in bounds for _ in part], dtype=torch.int64, device=y.device
    )
    owner = torch.arange(len(sizes), device=y.device).repeat_interleave(sizes)
    across = torch.where(owner[:, None] == owner, 0.0, right.mT @ right)
    R, failed = torch.linalg.cholesky_ex(across + y.diag(), upper=True)
    if bool(failed):
        return None
    return torch.linalg.solve_triangular(R, A, upper=True, left=False), R, size


def _diagonals(X: Tensor, C: Tensor) -> Tensor:
    """y with diag(y) >= X, of small sum: (classes, k)."""
    y = torch.maximum((X * C).sum(2), X.diagonal(dim1=1, dim2=2))
    root = y.rsqrt()
    largest = torch.linalg.eigvalsh(root[:, :, None] * X * root[:, None, :])[:, -1:]
    y, plain = y * largest.clamp_min(1.0), X.abs().sum(2)
    return torch.where(y.sum(1, keepdim=True) < plain.sum(1, keepdim=True), y, plain)


@dataclass(frozen=True)
class _Sets:
    """Weights c of the rows, (m,), and sets of steps that one user may own, with what the user
    contributes there.

    steps: (N, k) whole numbers, each row increasing, filled up with n; directions: (N, k, j), those
    of the filling 0; weights: (N,), of sum 1.
    """

    row_weights: Tensor
    steps: Tensor
    directions: Tensor
    weights: Tensor


@one_thread
def separated_moment(
    W: Tensor, gap: int, times: int, p: float, upper: float, tol: float, max_iterations: int
) -> Tensor:
    """X = C^T C of a strategy C of small error for users of at most ``times`` steps, ``gap`` apart:
    (n, n).

    With weights w_q >= 0 of sum 1 on sets q that one user may own, E_q the columns of the identity
    for q's steps and directions U_q with rows of norm at most 1, M = sum_q w_q E_q U_q U_q^T E_q^T
    has <X, M> <= S(C)^2: so the trace norm of diag(c)^{1/2} W M^{1/2} is below any strategy's
    error, and where it is largest its X is the best one.

    Each iteration: diag(c)^{1/2} W M^{1/2} = U T V^T, X = M^{-1/2} V T V^T M^{-1/2} / tr T; a set's
    directions are multiplied by X_q^EXPONENT and its weight by <X_q, R_q>^{2 EXPONENT}; now and
    then sets that X makes large join. Starts from the sets i, i + gap, ... for each i, and ends
    where tr T is ``upper`` / (1 + tol).
    """
    n = len(W)
    steps = torch.arange(n)[:, None] + gap * torch.arange(times)
    steps = steps.clamp_max(n)
    rows = scaled_weights(torch.ones_like(W[:, 0]), conjugate(p))
    sets = _Sets(rows, steps, _identity(steps, n), W.new_full((n,), 1 / n))
    largest, best = 0.0, torch.eye(n, dtype=W.dtype)
    for iteration in range(max_iterations):
        trace, X, squares = _spectral_step(W, sets)
        if trace > largest:
            largest, best = trace, X
        if upper <= largest * (1 + tol) or iteration == max_iterations - 1:
            break
        sets = _moved(sets, X, _rows(sets.row_weights, squares, trace, p))
        if iteration % SEARCH == SEARCH - 1:
            sets = _joined(sets, X, gap, times)
    return best


def _spectral_step(W: Tensor, sets: _Sets) -> tuple[float, Tensor, Tensor]:
    """tr T, X, and the squared row norms that X gives, times (tr T)."""
    values, Q = torch.linalg.eigh(_moment(sets))
    values = torch.maximum(values, RESOLVED * values[-1])
    root = (Q * values.sqrt()) @ Q.mT
    inverse = (Q / values.sqrt()) @ Q.mT
    WM = W @ root
    Y = sets.row_weights.sqrt()[:, None] * WM
    squared, V = torch.linalg.eigh(Y.mT @ Y)
    T = torch.maximum(squared, RESOLVED * squared[-1]).sqrt()
    trace = T.sum()
    half = (V * T.sqrt()).mT @ inverse
    squares = ((WM @ V) / T.sqrt()).square().sum(1)
    return float(trace), half.mT @ half / trace, squares


def _moment(sets: _Sets) -> Tensor:
    """M, (n, n)."""
    n = len(sets.row_weights)
    R = sets.weights[:, None, None] * sets.directions @ sets.directions.mT
    place = sets.steps[:, :, None] * (n + 1) + sets.steps[:, None, :]
    M = R.new_zeros((n + 1) ** 2).index_add_(0, place.flatten(), R.flatten())
    return M.view(n + 1, n + 1)[:n, :n]


def _rows(c: Tensor, squares: Tensor, trace: float, p: float) -> Tensor:
    """The rows' next weights, of norm 1 in l_{p/(p-2)}."""
    if p == 2:
        return c
    if p < math.inf:
        share = c * squares
        return (share / share.sum()) ** ((p - 2) / p)
    return simplex(c * (squares / trace) ** (2 * EXPONENT), LEAST / len(c))


def _moved(sets: _Sets, X: Tensor, rows: Tensor) -> _Sets:
    """Weights and directions after one update; sets of no weight left out."""
    padded = torch.nn.functional.pad(X, (0, 1, 0, 1))
    blocks = padded[sets.steps[:, :, None], sets.steps[:, None, :]]
    values = (sets.directions * (blocks @ sets.directions)).sum((1, 2))
    weights = sets.weights * values.clamp_min(1e-300) ** (2 * EXPONENT)
    weights = weights / weights.sum()
    kept = weights > DROPPED
    size, Q = torch.linalg.eigh(blocks[kept])
    grown = (Q * size.clamp_min(0).pow(EXPONENT)[:, None, :]) @ (Q.mT @ sets.directions[kept])
    grown = grown / grown.norm(dim=2, keepdim=True).clamp_min(1e-300)
    grown = torch.where((sets.steps[kept] < len(X))[:, :, None], grown, 0.0)
    return _Sets(rows, sets.steps[kept], grown, weights[kept] / weights[kept].sum())


def _joined(sets: _Sets, X: Tensor, gap: int, times: int) -> _Sets:
    """With the sets of largest sums of abs(X) that are not there yet, each with orthogonal
    directions.

    They are chains, and chains with one step exchanged for the best other one.
    """
    Z = X.abs()
    steps, sums = _exchanged(Z, _chains(Z, gap, times), gap)
    known = {tuple(row) for row in sets.steps.tolist()}
    fresh = []
    for i in sums.argsort(descending=True).tolist():
        row = tuple(steps[i].tolist())
        if sums[i] > 1 and row not in known:
            known.add(row)
            fresh.append(i)
    if not fresh:
        return sets
    added = steps[fresh[:ADDED]]
    weights = torch.cat(
        [sets.weights * (1 - SHARE), sets.weights.new_full((len(added),), SHARE / len(added))]
    )
    directions = torch.cat([sets.directions, _identity(added, len(X))])
    return _Sets(sets.row_weights, torch.cat([sets.steps, added]), directions, weights)


def _chains(Z: Tensor, gap: int, times: int) -> Tensor:
    """Sets of at most ``times`` steps, ``gap`` apart, with large sums of Z, (2 n, times) padded
    with n.

    Step by step the best chain that ends in each step, its sums of Z carried along; forwards and
    backwards.
    """
    n = len(Z)
    every = torch.arange(n)
    near = every[:, None] > every - gap
    found = []
    for turned in (False, True):
        z = Z.flip(0, 1) if turned else Z
        own = z.diagonal()
        total, carried, members = own, z, every[:, None]
        for _ in range(1, times):
            reach = total[:, None] + 2 * carried + own  # [i, j]: the chain that ends in i, then j
            gain, before = reach.masked_fill(near, -math.inf).max(0)
            better = gain > total  # a chain that cannot grow stays
            total = torch.where(better, gain, total)
            carried = torch.where(better[:, None], carried[before] + z, carried)
            grown = torch.cat([members[before], every[:, None]], 1)
            kept = torch.nn.functional.pad(members, (1, 0), value=-1)
            members = torch.where(better[:, None], grown, kept)
        found.append(torch.where(members < 0, n, n - 1 - members if turned else members))
    return torch.cat(found).sort(1).values


def _exchanged(Z: Tensor, steps: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """The sets (N, times), padded with n, and those with one step exchanged for the best other one;
    sums of Z.
    """
    n = len(Z)
    every = torch.arange(n)
    padded = torch.nn.functional.pad(Z, (0, 1, 0, 1))
    found, sums = [steps], [padded[steps[:, :, None], steps[:, None, :]].sum((1, 2))]
    for q in range(steps.shape[1]):
        others = torch.cat([steps[:, :q], steps[:, q + 1 :]], 1)
        value = padded[others[:, :, None], others[:, None, :]].sum((1, 2))
        gains = value[:, None] + Z.diagonal() + 2 * padded[others].sum(1)[:, :n]
        near = (others[:, :, None] - every).abs() < gap
        near = near & (others < n)[:, :, None]
        best = gains.masked_fill(near.any(1) | (steps[:, q, None] == every), -math.inf).max(1)
        found.append(torch.cat([others, best.indices[:, None]], 1).sort(1).values)
        sums.append(best.values)
    return torch.cat(found), torch.cat(sums)


def _identity(steps: Tensor, n: int) -> Tensor:
    """Directions of steps that are all orthogonal; 0 for the padding."""
    k = steps.shape[1]
    return torch.eye(k, dtype=torch.float64, device=steps.device) * (steps < n)[:, :, None]
