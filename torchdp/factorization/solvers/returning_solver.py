"""Users who come back: in one step of each epoch, or in steps that keep a gap.

Of epochs a fixed point of row weights and of one block for each class (attempts); of steps that
keep a gap one of weights on sets of steps, which are found by column generation (separated_moment).

Notation:
    A, W: the workload, (m, n); p: the errors' norm, in [2, inf].
    c: weights of the rows, (m,), of norm 1 in l_{p/(p-2)}.
    M: weights of the columns, (n, n), positive semidefinite.
    X: right^T right, (n, n).
    Blocks: a matrix that is block diagonal by class is a list of tensors (classes, k, k), one for
        each number k of columns in a class; shapes holds the pairs (classes, k).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdp.factorization.certificates.certificate import conjugate, power_norm, scaled_weights
from torchdp.factorization.solvers.iteration import History, Schedule, simplex
from torchdp.factorization.solvers.spectrum import SQUARE_TOLERANCE, right_vectors
from torchdp.threads import one_thread

# Exponent of the update of M: half of that of single columns' weights.
STEP = 0.9
# Rows' weights stay above FLOOR * tol / m, which costs the lower bound about FLOOR * tol.
FLOOR = 0.1
# Eigenvalues of M keep a ratio below e^SPREAD.
SPREAD = 40.0
# Share of the largest below which an eigenvalue of M's blocks is rounding.
ROUNDING = 1e-14
# Share of the largest below which a singular value is not resolved: any small one will do.
SMALLEST = 1e-20

# Of users who keep a gap: exponent of the updates.
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
TINY = 1e-300

# left, right, row weights, the blocks of M^{1/2} and the iterations, for columns sorted by class
Attempt = tuple[Tensor, Tensor, Tensor, list[Tensor], int]


def attempts(
    A: Tensor,
    shapes: list[tuple[int, int]],
    p: float,
    tol: float,
    max_iterations: int,
) -> Iterator[Attempt]:
    """The iteration of :func:`factorize_epochs`.

    Yields its best where the gap seems to be below ``tol``, and now and then before that, as the
    exact fixed point does: the caller judges, and takes the next where the certificate is open.

    Args:
        A: of rank n, largest entry about 1, columns sorted by class.
        shapes: (classes, columns of each).
        p: in [2, inf].
        tol: relative gap.
        max_iterations: at least 1.
    """
    weights = _Weights(A, shapes, p, tol)
    looks = Schedule(tol)
    upper = math.inf
    lower = 0.0
    for iteration in range(1, max_iterations + 1):
        dual = weights.dual()
        left, right, trace = _spectral(A, dual)
        a = left.square().sum(1)
        X = [part.mT @ part for part in parts_of(right, shapes)]
        squares = [B.abs().sum((1, 2)) for B in X]
        size = torch.cat(squares).max()
        correlations = [_unit(B) for B in weights.M]
        orthogonal = orthogonal_columns(A, right, X, correlations)
        if orthogonal is not None:
            left, right, size = orthogonal
        value = float(power_norm(left.norm(dim=1), p) * size.sqrt())
        if value < upper:
            upper = value
            factors = (left, right)
        if trace > lower:
            lower = trace
            proof = (dual.c, dual.roots)
        gap = upper / lower - 1
        finished = gap <= looks.within
        if looks.due(iteration, finished) or iteration == max_iterations:
            yield *factors, *proof, iteration
            if not looks.go_on(iteration, gap, finished):
                return
        weights.move(a, X, trace, dual)


class _Dual(NamedTuple):
    """c, and M^{1/2}, M^{-1/2} and log M by blocks."""

    c: Tensor
    roots: list[Tensor]
    inverses: list[Tensor]
    logarithms: list[Tensor]


class _Weights:
    """The weights s of the rows and M of the columns, a block for each class, and how they move.

    c = s^{(p-2)/p}.
    """

    def __init__(
        self,
        A: Tensor,
        shapes: list[tuple[int, int]],
        p: float,
        tol: float,
    ) -> None:
        m = len(A)
        classes = sum(count for count, _ in shapes)
        self.p = p
        self.exponent = 1 / conjugate(p)
        self.floor = FLOOR * tol / m
        self.s = A.new_full((m,), 1 / m)
        even = torch.eye(shapes[0][1], dtype=A.dtype, device=A.device) / classes
        self.M = [even[:k, :k].expand(count, k, k) for count, k in shapes]
        self.history = History(8)
        self.step = 1.0
        self.previous = 0.0  # trace norm
        # Entries of M weigh as the diagonal in their row does.
        spread = [_diagonal(B)[..., None].expand_as(B).flatten() for B in self.M]
        self.measure = torch.cat([self.s, *spread])

    def dual(self) -> _Dual:
        """What the weights are weighed by."""
        spectra = [_eigenvalues(B) for B in self.M]
        return _Dual(
            c=self.s**self.exponent,
            roots=[_matrix(values.pow(0.5), Q) for values, Q in spectra],
            inverses=[_matrix(values.pow(-0.5), Q) for values, Q in spectra],
            logarithms=[_matrix(values.log(), Q) for values, Q in spectra],
        )

    def move(
        self,
        a: Tensor,
        X: list[Tensor],
        trace: float,
        dual: _Dual,
    ) -> None:
        """The update, extrapolated.

        Args:
            a: squared norms of left's rows.
            X: blocks of right^T right.
            trace: the trace norm.
            dual: as :meth:`dual` has it.
        """
        smaller = trace < self.previous * (1 - 1e-12)
        fell = torch.tensor(smaller, dtype=torch.bool, device=a.device)
        back = fell & self.history.extrapolated
        self.previous = 0.0 if back else trace
        if fell and not back:
            self.step = (self.step + 0.5) / 2
        moved = [
            _grown(B, root, G / trace) for B, root, G in zip(self.M, dual.roots, X, strict=True)
        ]
        update = [self._rows(a, trace)]
        for B, before in zip(_scaled(moved), dual.logarithms, strict=True):
            values, Q = _eigenvalues(B)
            change = _matrix(values.log(), Q) - before
            update.append(change.flatten())
        x = torch.cat([self.s.log(), *[L.flatten() for L in dual.logarithms]])
        x = self.history.mix(x, self.step * torch.cat(update), self.measure, back)
        sizes = [B.numel() for B in self.M]
        rows, *blocks = x.split([len(self.s), *sizes])
        self.s = simplex(rows.softmax(0), self.floor)
        logarithms = [block.view_as(B) for block, B in zip(blocks, self.M, strict=True)]
        self.M = _scaled(_exponentials(logarithms))

    def _rows(self, a: Tensor, trace: float) -> Tensor:
        """The update of the rows' logarithms."""
        if self.p == 2:
            return torch.zeros_like(a)
        if self.p < math.inf:
            weighed = self.s**self.exponent * a
            share = (weighed / weighed.sum()).clamp_min(1e-20)
            return (share / self.s).log()
        rows = 2 * STEP * (a / trace).clamp_min(1e-20).log()
        # at the floor: nowhere to fall
        at_floor = self.s <= 2 * self.floor
        return torch.where(at_floor & (rows < 0), 0.0, rows)


def _spectral(A: Tensor, dual: _Dual) -> tuple[Tensor, Tensor, float]:
    """left, right, left right = A, from diag(c)^{1/2} A M^{1/2} = U T V^T, and the trace norm."""
    Y = _times(A, dual.roots)
    T, V = _right_vectors(dual.c.sqrt()[:, None] * Y)
    left = (Y @ V) * T.rsqrt()
    right = T.sqrt()[:, None] * _times(V.mT, dual.inverses)
    return left, right, float(T.sum())


def classes_of(n: int, period: int, device: torch.device) -> tuple[Tensor, list[tuple[int, int]]]:
    """The columns sorted by class, longer classes first, and (number of classes, columns of each).

    Args:
        n: columns.
        period: between two columns of a class.
        device: of the result.
    """
    step = torch.arange(n, device=device)
    most = -(-n // period)
    longer = n % period
    shapes = [(longer or min(period, n), most)]
    if longer and most > 1:
        shapes.append((period - longer, most - 1))
    return torch.argsort(step % period, stable=True), shapes


def parts_of(right: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    """Columns of each class: (r, n) -> [(classes, r, columns)]."""
    parts = []
    columns = right.split([count * k for count, k in shapes], 1)
    for part, shape in zip(columns, shapes, strict=True):
        parts.append(part.unflatten(1, shape).movedim(1, 0))
    return parts


def _times(Y: Tensor, blocks: list[Tensor]) -> Tensor:
    """Y times the block diagonal matrix."""
    shapes = [(len(B), B.shape[-1]) for B in blocks]
    columns = []
    for part, B in zip(parts_of(Y, shapes), blocks, strict=True):
        product = part @ B
        columns.append(product.movedim(0, 1).flatten(1))
    return torch.cat(columns, 1)


def _right_vectors(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors."""
    values, V = torch.linalg.eigh(Y.mT @ Y)
    # Eigenvalues of the Gram matrix are squares, accurate to a share of the largest.
    if values[0] > SQUARE_TOLERANCE * values[-1]:
        return values.sqrt(), V
    T, V = right_vectors(Y)
    return T.clamp_min(SMALLEST * T[0]), V


def _grown(B: Tensor, root: Tensor, G: Tensor) -> Tensor:
    """G^STEP B G^STEP, scaled to B's diagonal times <G, C>^{2 STEP}, C = B over its diagonal.

    root: B^{1/2}.
    """
    values, Q = _eigenvalues(G)
    # Its row norms stay positive where rounding would turn signs.
    Z = _matrix(values.pow(STEP), Q) @ root
    level = _diagonal(B)[:, :1, None]
    inner = (G * B).sum((1, 2), keepdim=True).clamp_min(1e-20)
    return _unit(Z @ Z.mT) * level * (inner / level) ** (2 * STEP)


def _scaled(blocks: list[Tensor]) -> list[Tensor]:
    """Each block of constant diagonal, its geometric mean; these together of sum 1."""
    means = [_diagonal(B).log().mean(1).exp() for B in blocks]
    total = sum(mean.sum() for mean in means)
    scaled = []
    for B, mean in zip(blocks, means, strict=True):
        scaled.append(_unit(B) * (mean / total)[:, None, None])
    return scaled


def _unit(B: Tensor) -> Tensor:
    """Scaled to diagonal 1."""
    root = _diagonal(B).rsqrt()
    return root[:, :, None] * B * root[:, None, :]


def _diagonal(B: Tensor) -> Tensor:
    return B.diagonal(dim1=1, dim2=2)


def _eigenvalues(B: Tensor) -> tuple[Tensor, Tensor]:
    """Above what rounding makes of 0, and their vectors."""
    values, Q = torch.linalg.eigh(B)
    return torch.maximum(values, ROUNDING * values[..., -1:]), Q


def _matrix(values: Tensor, Q: Tensor) -> Tensor:
    """Of these eigenvalues and vectors."""
    return (Q * values[:, None, :]) @ Q.mT


def _exponentials(logarithms: list[Tensor]) -> list[Tensor]:
    """exp(L) of each, all of them times one number.

    An extrapolation, however far it goes, overflows nothing.
    """
    spectra = [torch.linalg.eigh((L + L.mT) / 2) for L in logarithms]
    top = max(float(values.max()) for values, _ in spectra)
    exponentials = []
    for values, Q in spectra:
        grown = (values - top).clamp_min(-SPREAD).exp()
        exponentials.append(_matrix(grown, Q))
    return exponentials


def orthogonal_columns(
    A: Tensor,
    right: Tensor,
    blocks: list[Tensor],
    correlations: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Factors of A whose right columns are orthogonal in each class.

    For X = right^T right and its block X_i of class i, any y_i with diag(y_i) >= X_i has max <X_i,
    C> <= sum y_i over correlation matrices C, with equality for the best y_i (duality of
    semidefinite programs). X' is X with diag(y_i) for X_i: then X' >= X, so that no squared error
    (A X'^{-1} A^T)_tt grows, and its S^2 is max_i sum y_i. So nothing is lost where the columns of
    a class are orthogonal, whatever the errors' norm.

    y_i: (X_i C)_ss for the ``correlations`` C at hand, at least X_ss, times what makes diag(y_i) >=
    X_i; or the sums of abs(X_i)'s rows where these add up to less. Then y_i grows until all classes
    have one sum.

    Args:
        A: (m, n).
        right: (n, n), columns sorted by class.
        blocks: of X.
        correlations: blocks C of diagonal 1.

    Returns:
        left, right' and S^2: left right' = A, X' = right'^T right' diagonal in each class, S^2 the
        sum of X' over a class. None where rounding leaves no Cholesky factor of X'.

    Guarantees: S^2 is attained by a user, and at most the largest sum of abs(X_i); no row of left
    is longer than one
        of A right^{-1}, up to rounding.
    Source: here.
    """
    bounds = [_dominating(X, C) for X, C in zip(blocks, correlations, strict=True)]
    sums = [y.sum(1, keepdim=True) for y in bounds]
    size = torch.stack([total.max() for total in sums]).max()
    grown = [y * (size / total) for y, total in zip(bounds, sums, strict=True)]
    y = torch.cat([part.flatten() for part in grown])
    sizes = torch.tensor(
        [part.shape[1] for part in bounds for _ in part], dtype=torch.int64, device=y.device
    )
    owner = torch.arange(len(sizes), device=y.device).repeat_interleave(sizes)
    across = torch.where(owner[:, None] == owner, 0.0, right.mT @ right)
    R, failed = torch.linalg.cholesky_ex(across + y.diag(), upper=True)
    if bool(failed):
        return None
    return torch.linalg.solve_triangular(R, A, upper=True, left=False), R, size


def _dominating(X: Tensor, C: Tensor) -> Tensor:
    """y with diag(y) >= X, of small sum: (classes, k)."""
    y = torch.maximum((X * C).sum(2), _diagonal(X))
    root = y.rsqrt()
    relative = root[:, :, None] * X * root[:, None, :]
    largest = torch.linalg.eigvalsh(relative)[:, -1:]
    y = y * largest.clamp_min(1.0)
    row_sums = X.abs().sum(2)
    better = y.sum(1, keepdim=True) < row_sums.sum(1, keepdim=True)
    return torch.where(better, y, row_sums)


@dataclass(frozen=True)
class _Sets:
    """Weights of the rows, and sets of steps that one user may own, with what is contributed there.

    row_weights: c, (m,).
    steps: (N, k) whole numbers, each row increasing, filled up with n.
    directions: (N, k, j), rows of norm at most 1, those of the filling 0.
    weights: (N,), of sum 1.
    """

    row_weights: Tensor
    steps: Tensor
    directions: Tensor
    weights: Tensor


@one_thread
def separated_moment(
    W: Tensor,
    gap: int,
    times: int,
    p: float,
    upper: float,
    tol: float,
    max_iterations: int,
) -> Tensor:
    """X = C^T C, (n, n), of a strategy C of small error for users whose steps keep a gap.

    With weights w_q >= 0 of sum 1 on sets q that one user may own, E_q the columns of the identity
    for q's steps and directions U_q with rows of norm at most 1, M = sum_q w_q E_q U_q U_q^T E_q^T
    has <X, M> <= S(C)^2: so the trace norm of diag(c)^{1/2} W M^{1/2} is below any strategy's
    error, and where it is largest its X is the best one.

    Each iteration: diag(c)^{1/2} W M^{1/2} = U T V^T, X = M^{-1/2} V T V^T M^{-1/2} / tr T; a set's
    directions are multiplied by X_q^EXPONENT and its weight by <X_q, R_q>^{2 EXPONENT}; now and
    then sets that X makes large join. Starts from the sets i, i + gap, ... for each i.

    Args:
        W: (m, n).
        gap: between two steps of a user.
        times: steps of a user, at most.
        p: in [2, inf].
        upper: a bound on the error: it ends where tr T is ``upper`` / (1 + tol).
        tol: relative gap.
        max_iterations: at least 1.
    """
    n = len(W)
    steps = torch.arange(n, device=W.device)[:, None] + gap * torch.arange(times, device=W.device)
    steps = steps.clamp_max(n)
    rows = scaled_weights(torch.ones_like(W[:, 0]), conjugate(p))
    sets = _Sets(rows, steps, _orthogonal(steps, n), W.new_full((n,), 1 / n))
    largest = 0.0
    best = torch.eye(n).to(W)
    for iteration in range(1, max_iterations + 1):
        trace, X, squares = _spectral_step(W, sets)
        if trace > largest:
            largest = trace
            best = X
        if upper <= largest * (1 + tol) or iteration == max_iterations:
            break
        rows = _row_update(sets.row_weights, squares, trace, p)
        sets = _moved(sets, X, rows)
        if iteration % SEARCH == 0:
            sets = _joined(sets, X, gap, times)
    return best


def _spectral_step(W: Tensor, sets: _Sets) -> tuple[float, Tensor, Tensor]:
    """tr T, X, and the squared row norms that X gives, times (tr T)."""
    values, Q = torch.linalg.eigh(_moment(sets))
    root_values = torch.maximum(values, RESOLVED * values[-1]).sqrt()
    WM = W @ ((Q * root_values) @ Q.mT)
    inverse = (Q / root_values) @ Q.mT
    Y = sets.row_weights.sqrt()[:, None] * WM
    squared, V = torch.linalg.eigh(Y.mT @ Y)
    T = torch.maximum(squared, RESOLVED * squared[-1]).sqrt()
    trace = T.sum()
    half = (V * T.sqrt()).mT @ inverse
    left = (WM @ V) / T.sqrt()
    return float(trace), half.mT @ half / trace, left.square().sum(1)


def _moment(sets: _Sets) -> Tensor:
    """M, (n, n)."""
    n = len(sets.row_weights)
    products = sets.weights[:, None, None] * sets.directions @ sets.directions.mT
    # Row and column n take the padding.
    place = sets.steps[:, :, None] * (n + 1) + sets.steps[:, None, :]
    M = products.new_zeros((n + 1) ** 2)
    M.index_add_(0, place.flatten(), products.flatten())
    return M.view(n + 1, n + 1)[:n, :n]


def _row_update(c: Tensor, squares: Tensor, trace: float, p: float) -> Tensor:
    """The rows' next weights, of norm 1 in l_{p/(p-2)}."""
    if p == 2:
        return c
    if p < math.inf:
        share = c * squares
        return (share / share.sum()) ** ((p - 2) / p)
    return simplex(c * (squares / trace) ** (2 * EXPONENT), LEAST / len(c))


def _moved(sets: _Sets, X: Tensor, rows: Tensor) -> _Sets:
    """Weights and directions after one update; sets of no weight left out."""
    blocks = _restricted(X, sets.steps)
    values = (sets.directions * (blocks @ sets.directions)).sum((1, 2))
    weights = sets.weights * values.clamp_min(TINY) ** (2 * EXPONENT)
    weights = weights / weights.sum()
    kept = weights > DROPPED
    steps = sets.steps[kept]
    size, Q = torch.linalg.eigh(blocks[kept])
    powers = size.clamp_min(0).pow(EXPONENT)[:, None, :]
    grown = (Q * powers) @ (Q.mT @ sets.directions[kept])
    grown = grown / grown.norm(dim=2, keepdim=True).clamp_min(TINY)
    grown = torch.where((steps < len(X))[:, :, None], grown, 0.0)
    return _Sets(rows, steps, grown, weights[kept] / weights[kept].sum())


def _joined(sets: _Sets, X: Tensor, gap: int, times: int) -> _Sets:
    """With the sets of largest sums of abs(X) that are not there yet, of orthogonal directions.

    They are chains, and chains with one step exchanged for the best other one.
    """
    Z = X.abs()
    steps, sums = _exchanged(Z, _chains(Z, gap, times), gap)
    known = {tuple(row) for row in sets.steps.tolist()}
    fresh = []
    for i in sums.argsort(descending=True).tolist():
        row = tuple(steps[i].tolist())
        # A sum above 1 = <X, M>: with such a set in M the trace norm grows.
        if sums[i] > 1 and row not in known:
            known.add(row)
            fresh.append(i)
    if not fresh:
        return sets
    added = steps[fresh[:ADDED]]
    share = sets.weights.new_full((len(added),), SHARE / len(added))
    return _Sets(
        row_weights=sets.row_weights,
        steps=torch.cat([sets.steps, added]),
        directions=torch.cat([sets.directions, _orthogonal(added, len(X))]),
        weights=torch.cat([sets.weights * (1 - SHARE), share]),
    )


def _chains(Z: Tensor, gap: int, times: int) -> Tensor:
    """Sets of at most ``times`` steps, ``gap`` apart, with large sums of Z: (2 n, times).

    Step by step the best chain that ends in each step, its sums of Z carried along; forwards and
    backwards. Padded with n.
    """
    n = len(Z)
    every = torch.arange(n, device=Z.device)
    near = every[:, None] > every - gap
    found = []
    for reversed_order in (False, True):
        z = Z.flip(0, 1) if reversed_order else Z
        own = z.diagonal()
        total = own
        carried = z
        members = every[:, None]
        for _ in range(1, times):
            reach = total[:, None] + 2 * carried + own  # [i, j]: the chain that ends in i, then j
            gain, before = reach.masked_fill(near, -math.inf).max(0)
            better = gain > total  # a chain that cannot grow stays
            total = torch.where(better, gain, total)
            better = better[:, None]
            carried = torch.where(better, carried[before] + z, carried)
            grown = torch.cat([members[before], every[:, None]], 1)
            members = torch.where(better, grown, pad(members, (1, 0), value=-1))
        places = n - 1 - members if reversed_order else members
        found.append(torch.where(members < 0, n, places))
    return torch.cat(found).sort(1).values


def _exchanged(Z: Tensor, steps: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """The sets, those with one step exchanged for the best other one, and their sums of Z.

    steps: (N, times), padded with n.
    """
    n = len(Z)
    every = torch.arange(n, device=Z.device)
    # Column n, of the padding, is 0.
    padded = pad(Z, (0, 1, 0, 1))
    found = [steps]
    sums = [_restricted(Z, steps).sum((1, 2))]
    for q in range(steps.shape[1]):
        others = torch.cat([steps[:, :q], steps[:, q + 1 :]], 1)
        value = _restricted(Z, others).sum((1, 2))
        links = padded[others].sum(1)[:, :n]
        gains = value[:, None] + Z.diagonal() + 2 * links
        near = (others[:, :, None] - every).abs() < gap
        near = near & (others < n)[:, :, None]
        refused = near.any(1) | (steps[:, q, None] == every)
        best = gains.masked_fill(refused, -math.inf).max(1)
        exchanged = torch.cat([others, best.indices[:, None]], 1)
        found.append(exchanged.sort(1).values)
        sums.append(best.values)
    return torch.cat(found), torch.cat(sums)


def _restricted(Z: Tensor, steps: Tensor) -> Tensor:
    """Z on each set of steps, (N, k, k), 0 on the padding."""
    padded = pad(Z, (0, 1, 0, 1))
    return padded[steps[:, :, None], steps[:, None, :]]


def _orthogonal(steps: Tensor, n: int) -> Tensor:
    """Directions of steps that are all orthogonal; 0 for the padding."""
    k = steps.shape[1]
    eye = torch.eye(k, dtype=torch.float64, device=steps.device)
    return eye * (steps < n)[:, :, None]
