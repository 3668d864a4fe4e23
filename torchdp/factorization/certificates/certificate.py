"""The one evaluator of factorizations: it relies on no solver's claims.

Notation:
    W: the workload, (*batch, m, n); left (*batch, m, r), right (*batch, r, n): its factors.
    E: what factors miss, W - shift 1^T - left right.
    c, P: weights of the rows (*batch, m) and of the columns (*batch, n); p: the errors' norm.

Bounds and Certificate hold what is proved, certify and certify_kronecker prove it; the rest is what
the other certificates share.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief


@dataclass(frozen=True)
class Bounds(Brief):
    """A number, or a batch of them, lies in [lower, upper].

    rounding: (*batch) or a number, absolute: what the arithmetic of whoever made the bounds may
    have cost; they hold up to it. Bounds that contradict each other by more do not become a result,
    and are not repaired.

    Raises ArithmeticError where lower <= upper + rounding does not hold, and where a bound is not a
    number.
    """

    upper: Tensor | float
    lower: Tensor | float
    _: KW_ONLY
    rounding: Tensor | float

    def __post_init__(self) -> None:
        refuse_contradiction(self.lower, self.upper, self.rounding)

    @property
    def gap(self) -> Tensor:
        """upper / lower - 1, at most the relative distance to the optimum; 0 for equal bounds."""
        upper = torch.as_tensor(self.upper, dtype=torch.float64)
        lower = torch.as_tensor(self.lower, dtype=torch.float64)
        gap = torch.where(upper == lower, 0.0, upper / lower - 1)
        # An upper bound that overflowed bounds nothing.
        return torch.where(upper.isfinite(), gap, math.inf)

    def closed(self, tol: float) -> Tensor:
        """Whether the gap is at most ``tol``, or all rounding: (*batch)."""
        upper = torch.as_tensor(self.upper, dtype=torch.float64)
        return upper.isfinite() & (upper <= self.lower * (1 + tol) + self.rounding)


@dataclass(frozen=True)
class Certificate(Bounds):
    """Proof that a factorization norm lies in [lower, upper], from factors and weights in float64.

    upper, lower, residual: float64 tensors of shape (*batch). None is squared.
    ``residual`` is max abs(W - shift 1^T - left right); its own factorization norm is part of
    ``upper``, so a factorization that misses W is charged for it.
    """

    upper: Tensor
    lower: Tensor
    residual: Tensor


def refuse_contradiction(
    lower: Tensor | float, upper: Tensor | float, rounding: Tensor | float
) -> None:
    """Raises ArithmeticError unless lower <= upper + rounding everywhere, 0 <= rounding < inf."""
    device = next((x.device for x in (lower, upper, rounding) if isinstance(x, Tensor)), "cpu")
    lower = torch.as_tensor(lower, dtype=torch.float64, device=device)
    upper = torch.as_tensor(upper, dtype=torch.float64, device=device)
    rounding = torch.as_tensor(rounding, dtype=torch.float64, device=device)
    sensible = ((rounding >= 0) & (rounding < math.inf)).all()
    consistent = (lower <= upper + rounding).all()
    sensible, consistent = torch.stack([sensible, consistent]).tolist()  # waited for once
    if not sensible:
        raise ArithmeticError("rounding must be finite and not negative")
    if not consistent:
        excess = float((lower - upper - rounding).max())
        raise ArithmeticError(
            f"the lower bound exceeds the upper bound by {excess:.3g} more than rounding explains "
            "(nan: one is not a number), so that one of them is false: an error in the code, or "
            "input that is too ill-conditioned for it"
        )


def allowance(upper: Tensor, terms: int, *others: Tensor) -> Tensor:
    """8 eps terms (upper + others): what sums of ``terms`` numbers in float64 may cost.

    0 where upper is infinite.
    """
    limits = torch.finfo(upper.dtype)
    # eps times tiny is the last subnormal number
    size = sum(others, upper + limits.tiny)
    # Infinite, or no number, where upper is.
    return (8 * limits.eps * terms * size).nan_to_num(0.0, 0.0, 0.0)


def certify(
    W: Tensor,
    left: Tensor,
    right: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
    *,
    p: float = math.inf,
    shift: Tensor | None = None,
) -> Certificate:
    """Bounds on gamma_(p)(W), or with ``shift`` on min_v gamma_(p)(W + v 1^T), in float64.

    upper = l_p norm of left's row norms * largest column norm of right + ||E||, where E is what is
    missing (E = W - shift 1^T - left right, and ||E|| the l_p norm of its row norms: the
    factorization E = E I). lower = trace norm of diag(c)^{1/2} (W - W P 1^T [with shift only])
    diag(P)^{1/2}, for c = row_weights scaled to ||c||_{p/(p-2)} = 1 and P = column_weights scaled
    to sum 1.

    Args:
        W: (*batch, m, n).
        left: (*batch, m, r).
        right: (*batch, r, n).
        row_weights: (*batch, m), non-negative; all zero: lower = 0.
        column_weights: (*batch, n), likewise.
        p: in [2, inf].
        shift: (*batch, m) or None.

    Leading dimensions broadcast to W's; all on W's device. No gradients. upper is inf, and so is
    the gap, where left @ right overflows. rounding = 8 eps (m + n + r) (upper + [with shift only]
    l_p norm of the rows' largest entries).
    Raises ValueError or TypeError, naming the argument, on other shapes and devices, on entries
    that are not finite, on negative weights and on p outside [2, inf].

    Guarantees: lower <= norm <= upper for any factors and any non-negative weights, good or bad.
    Source: weak duality, Edmonds, Nikolov, Ullman (2020), Lemma 12; with p and shift, Nikolov, Tang
    (2023), Theorem 26; the triangle inequality for the residual.
    """
    p = check_exponent(p)
    W = checks.matrix("W", W).detach().double()
    m, n = W.shape[-2:]
    weights = {"row_weights": row_weights, "column_weights": column_weights}
    left, right, rows, columns = fitting(W, left=left, right=right, **weights)
    if shift is not None:
        shift = fitting(W, shift=shift)[0][..., None]
    missing = W - left @ right
    subtracted = []
    if shift is not None:
        missing = missing - shift
        subtracted = [power_norm(W.abs().amax(-1), p)]
    upper = value_of(left, missing, power_norm(right, 2.0, -2).amax(-1), p)
    lower = _dual_value(W, rows, columns, p, shift is not None)
    return judged(upper, lower, missing, m + n + left.shape[-1], *subtracted)


def value_of(left: Tensor, missing: Tensor, moved: Tensor, p: float, most: int = 1) -> Tensor:
    """What factors cost that move a user by ``moved``, with what they miss as E = E I beside them.

    most: how many types one user may hold, whose columns of I together are of norm sqrt(most).
    """
    return row_norm(left, p) * moved + row_norm(missing, p) * math.sqrt(most)


def judged(
    upper: Tensor, lower: Tensor, missing: Tensor, terms: int, *others: Tensor
) -> Certificate:
    """The certificate of these bounds for factors that miss E, rounding as of :func:`allowance`."""
    upper = or_infinite(upper)
    residual = or_infinite(missing.abs().amax((-2, -1)))
    return Certificate(upper, lower, residual, rounding=allowance(upper, terms, *others))


def _dual_value(W: Tensor, rows: Tensor, columns: Tensor, p: float, shifted: bool) -> Tensor:
    """The lower bound of :func:`certify` from non-negative weights of any scale, (*batch)."""
    rows = scaled_weights(rows, conjugate(p))
    columns = scaled_weights(columns, 1.0)
    # Scaled, so that a sum of W's largest entries does not overflow.
    size = W.abs().amax((-2, -1), keepdim=True)
    W = W / divisor(size)
    centred = W - W @ columns[..., None] if shifted else W
    metric = rows.sqrt()[..., None] * columns.sqrt()[..., None, :]
    weighted = centred * metric
    return _trace_norm(weighted) * size[..., 0, 0]


def _trace_norm(M: Tensor) -> Tensor:
    """The sum of the singular values, (*batch)."""
    if M.shape[-2] == M.shape[-1]:
        # Of a symmetric matrix, its columns reversed or not, the abs eigenvalues.
        for turned in (M, M.flip(-1)):
            if torch.equal(turned, turned.mT):
                return torch.linalg.eigvalsh(turned).abs().sum(-1)
    return torch.linalg.svdvals(M).sum(-1)


def check_exponent(p: float) -> float:
    """``p`` as a float in [2, inf]. Raises ValueError."""
    return checks.within("p", p, 2, math.inf)


def conjugate(p: float) -> float:
    """p / (p - 2), the order of the norm in which row weights are 1."""
    if p == math.inf:
        return 1.0
    return math.inf if p == 2 else p / (p - 2)


def row_norm(matrix: Tensor, p: float) -> Tensor:
    """The l_p norm of the row norms, (*batch)."""
    return power_norm(power_norm(matrix, 2.0), p)


def power_norm(values: Tensor, p: float, dim: int = -1) -> Tensor:
    """l_p norm along ``dim``, scaled so that no power overflows or underflows."""
    top = divisor(torch.linalg.vector_norm(values, ord=math.inf, dim=dim, keepdim=True))
    norm = torch.linalg.vector_norm(values / top, ord=p, dim=dim, keepdim=True)
    return (norm * top).squeeze(dim)


def divisor(top: Tensor) -> Tensor:
    """``top``, which is not negative, and 1 where it is 0."""
    return top + (top == 0)


def magnitude(W: Tensor) -> Tensor:
    """The power of two at W's largest entry, (*batch, 1, 1), which divides exactly; 1 for 0."""
    top = W.abs().amax((-2, -1), keepdim=True)
    power = top / (2 * torch.frexp(top).mantissa)
    return torch.where(top > 0, power, 1.0)


def or_infinite(bound: Tensor) -> Tensor:
    """``bound``, infinite where infinity times 0 or inf - inf made it no number."""
    return bound.nan_to_num(math.inf, math.inf, math.inf)


def scaled_weights(weights: Tensor, order: float) -> Tensor:
    """``weights`` scaled to norm 1, (*batch, k).

    They are sorted first, so that permuted problems get equal certificates. A norm below 1 is that
    of zero weights alone, which stay 0.
    """
    # First by the largest, so that subnormal weights keep their ratios.
    weights = weights / divisor(weights.amax(-1, keepdim=True))
    ordered = weights.sort(-1).values
    norm = torch.linalg.vector_norm(ordered, ord=order, dim=-1, keepdim=True)
    return weights / norm.clamp_min(1.0)


def dual_size(U: Tensor, row_weights: Tensor, column_weights: Tensor) -> tuple[Tensor, Tensor]:
    """||diag(c)^{-1/2} U diag(P)^{-1/2}||_op, (*batch), and U where no weight is 0.

    c and P are the weights scaled to sum 1. It is at least gamma_2* of that U. Source: Edmonds,
    Nikolov, Ullman (2020), Lemma 13.
    """
    c = scaled_weights(row_weights, 1.0)[..., None]
    P = scaled_weights(column_weights, 1.0)[..., None, :]
    U = torch.where((c > 0) & (P > 0), U, 0.0)
    scaled = divisor(c).rsqrt() * U * divisor(P).rsqrt()
    return torch.linalg.matrix_norm(scaled, 2), U


def fitting(W: Tensor, **given: Tensor | tuple[Tensor, tuple[int, ...]]) -> list[Tensor]:
    """What goes with W, in float64: finite, on its device, of shapes that broadcast to its batch.

    Of left, right and witness (matrices), of row_weights, column_weights and shift (vectors) the
    last dimensions are known; other names come with theirs. Weights hold no negative number. All
    entries are read together. Raises ValueError or TypeError, naming the argument.
    """
    m, n = W.shape[-2:]
    # Of right as many rows as left has columns.
    left = given.get("left")
    r = 1
    if isinstance(left, Tensor) and checks.dense("left", left).ndim:
        r = max(r, left.shape[-1])
    known = {"left": (m, r), "right": (r, n), "witness": (m, n), "column_weights": (n,)}
    values = {}
    for name, value in given.items():
        last = known.get(name, (m,))
        if isinstance(value, tuple):
            value, last = value
        values[name] = _shaped(name, value, W, last)
    for name, (least, _) in zip(values, checks.finite(**values), strict=True):
        if least < 0 and name.endswith("weights"):
            raise ValueError(f"{name} must hold no negative weights")
    return [value.double() for value in values.values()]


def _shaped(name: str, value: Tensor, W: Tensor, last: tuple[int, ...]) -> Tensor:
    """``value`` if its last dimensions are ``last`` and the others broadcast to W's batch."""
    value = checks.real(name, value).detach()
    if value.device != W.device:
        raise ValueError(f"{name} is on {value.device}, W on {W.device}; move it there")
    # numpy's: torch's own broadcast_shapes loads sympy.
    try:
        batch = np.broadcast_shapes(value.shape[: -len(last)], W.shape[:-2])
        fits = value.shape[-len(last) :] == last and batch == W.shape[:-2]
    except ValueError:
        fits = False
    if not fits:
        wanted = ", ".join(map(str, ("*batch", *last)))
        raise ValueError(
            f"{name} must be of shape ({wanted}) beside W of shape {tuple(W.shape)}, "
            f"not {tuple(value.shape)}"
        )
    return value


def certify_kronecker(certificates: Sequence[Certificate]) -> Certificate:
    """The certificate of W_1 (x) W_2 (x) ... with the Kronecker products of the parts' factors.

    upper = prod upper_i and lower = prod lower_i. What is missing is every product with at least
    one E_i, where W_i = left_i right_i + E_i; prod upper_i, multiplied out, holds a factorization
    of each of them, so all are charged. As max abs(W_i) <= gamma_(p)(W_i) <= upper_i, with e_i =
    residual_i,
        residual = prod (upper_i + e_i) - prod upper_i, summed without cancellation, bounds what is
        missing entrywise.

    rounding is made of the parts' likewise.

    Guarantees: lower <= gamma_(p)(W_1 (x) W_2 (x) ...) <= upper for the p of the parts, none with a
    shift.
    Source: Nikolov, Tang (2023), Lemma 62; both inequalities hold for any factors and any weights.
    """
    uppers = [part.upper for part in certificates]
    upper = or_infinite(reduce(torch.mul, uppers))
    lower = reduce(torch.mul, [part.lower for part in certificates])
    residual = or_infinite(_more(uppers, [part.residual for part in certificates]))
    rounding = _more(uppers, [part.rounding for part in certificates])
    rounding = rounding + allowance(upper, len(certificates))
    rounding = torch.where(upper.isfinite(), rounding, 0.0)
    return Certificate(upper, lower, residual, rounding=rounding)


def rounded(certificate: Certificate, columns: int, relative: float) -> Certificate:
    """The certificate once left's rows and right's columns have moved by ``relative`` of their size.

    An entry of left right moves by at most d = (1 + relative)^2 - 1 times ||left_i|| ||right_j||:
    the residual grows by at most d upper, and what is missing has rows of norm at most d
    sqrt(n) ||left_i|| max_j ||right_j||, which charges d sqrt(n) upper; n = ``columns``. Underflow
    apart.
    """
    # (1 + relative)^2 - 1, to full accuracy where relative is small
    d = math.expm1(2 * math.log1p(relative))
    moved = d * certificate.upper
    upper = certificate.upper + math.sqrt(columns) * moved
    residual = certificate.residual + moved
    return replace(certificate, upper=or_infinite(upper), residual=or_infinite(residual))


def _more(values: Sequence[Tensor], added: Sequence[Tensor | float]) -> Tensor:
    """prod (a_i + b_i) - prod a_i, without cancellation."""
    more = torch.zeros_like(values[0])
    total = torch.ones_like(more)  # prod (a_i + b_i)
    for a, b in zip(values, added, strict=True):
        more = more * a + total * b
        total = total * (a + b)
    return more
