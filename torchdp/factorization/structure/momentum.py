"""Gaussian paths with momentum that are observed: variances and draws of all their points, without a subtraction.

The path x_t = decay x_{t-1} + v_t, v_t = momentum v_{t-1} + N(0, P_t), from 0, is seen at each t through noise of
precision leaks_t. Let (a, b; b, d) be the covariance of (x_t, v_t) given what was seen until t, D = a d - b^2, and e
the factor by which the determinant of the precision grew. Then e (1, a, b, d, D) moves by linear maps alone, one to go
a step and one to see,

    d <- momentum^2 d + P e         b <- decay momentum b + d       a <- decay^2 a + 2 decay momentum b + d
    D <- decay^2 (momentum^2 D + P a)     then     e <- e + leak a      d <- d + leak D

(b and a from the new d, the old b; D from the old a) whose numbers are not negative: products of 5 x 5 matrices of
such numbers, in any order. Steps are taken in parts side by side: the product of each part, the states at their
borders, then the points.
"""

import math

import torch
from torch import Tensor

from torchdp.draws import Draws

State = tuple[Tensor, ...]  # e, a, b, d, D, or what a linear form has for them
SCALED = 8  # steps after which a state is made one large


def variances(steps: Tensor, leaks: Tensor, decay: float, momentum: float) -> Tensor:
    """Of each point of the path, given what is seen: (n,), (batch, n) -> (batch, n).

    The variance of x_t is the derivative of log e_n by leaks_t, the quotient of two sums of products, each over all n
    steps. A step rounds a product at most 7 times, a border of parts 6 times: the relative error is at most
    (7.5 n + 100) eps, underflow apart.
    Source: the matrix determinant lemma; entries of the second exterior power of the Riccati equation's linear form.
    """
    n, P, r = steps.shape[0], *_parts(steps, leaks)
    forward, state = _borders(P, r, decay, momentum)
    forms = []
    for i in reversed(range(len(P))):
        forms.append(state)
        state = _back(state, P[i], r[i], decay, momentum)
        state = _scaled(state) if i % SCALED == 0 else state
    found, state = torch.empty_like(r), forward
    for i in range(len(P)):
        state = _step(state, P[i], r[i], decay, momentum)
        state = _scaled(state) if i % SCALED == 0 else state
        e, a, b, d, D = state
        to_e, to_a, to_b, to_d, to_D = forms.pop()
        seen = (to_e * a).addcmul_(to_d, D)
        whole = (to_e * e).addcmul_(to_a, a).addcmul_(to_b, b).addcmul_(to_d, d).addcmul_(to_D, D)
        torch.div(seen, whole, out=found[i])
    return found.permute(1, 2, 0).flatten(1)[:, :n]


def draw(steps: Tensor, leaks: Tensor, decay: float, momentum: float, size: int, draws: Draws) -> Tensor:
    """The path given that 0 was seen at every t: (n,), (n,) -> (n, size), independent columns; n size normals.

    From the last point on: v_t given x_t and v_{t+1} is Gaussian, and x_{t-1} = (x_t - v_t) / decay.
    """
    n, P, r = len(steps), *_parts(steps, leaks[None])
    state, _ = _borders(P, r, decay, momentum)
    kept = []
    for i in range(len(P)):
        state = _scaled(_step(state, P[i], r[i], decay, momentum))
        kept.append(torch.stack([state[1] / state[0], state[2] / state[1], state[4] / state[1]]))
    variance, share, rest = torch.stack(kept, -1)[:, 0].flatten(1)[:, :n].flip(1)  # of x; of v in x; v's given x
    ahead = torch.nn.functional.pad(momentum / steps[1:].flip(0), (1, 0))  # what v_{t+1} tells of v_t
    whole = 1 + momentum * rest * ahead
    to_x, to_v = share / whole, rest * ahead / whole
    normals = draws.normal((n, size))
    fresh = (rest / whole).sqrt()[:, None] * torch.nn.functional.pad(normals[1:], (0, 0, 0, 1))
    to_x, to_v, fresh = (_split(y, len(P)) for y in (to_x[:, None], to_v[:, None], fresh))
    fresh = torch.nn.functional.pad(fresh, (2, 0))  # two columns more: what a part makes of its first x and v
    parts = fresh.shape[1]  # (length, parts, columns)
    x, v = torch.eye(2, size + 2, dtype=rest.dtype, device=rest.device)[:, None].expand(-1, parts, -1)
    path = torch.empty_like(fresh)
    for i in range(len(P)):
        path[i] = x
        v = to_x[i] * x + to_v[i] * v + fresh[i]
        x = (x - v) / decay
    start = variance[0].sqrt() * normals[0], torch.zeros_like(normals[0])
    own, by_x, by_v = path[..., 2:], path[..., :1], path[..., 1:2]
    for k in range(parts):
        own[:, k] += by_x[:, k] * start[0] + by_v[:, k] * start[1]
        start = tuple(y[k, 2:] + y[k, 0] * start[0] + y[k, 1] * start[1] for y in (x, v))
    return own.transpose(0, 1).flatten(0, 1)[:n].flip(0)


def _step(state: State, P: Tensor, r: Tensor, decay: float, momentum: float) -> State:
    """A step, then what is seen there."""
    e, a, b, d, D = state
    d = (P * e).add_(d, alpha=momentum**2)
    D = (P * a).add_(D, alpha=momentum**2).mul_(decay**2)
    a = d.add(b, alpha=2 * decay * momentum).add_(a, alpha=decay**2)
    b = d.add(b, alpha=decay * momentum)
    return torch.addcmul(e, r, a), a, b, torch.addcmul(d, r, D), D


def _back(form: State, P: Tensor, r: Tensor, decay: float, momentum: float) -> State:
    """The linear form of the state before that has the form's value after: the transpose of :func:`_step`."""
    e, a, b, d, D = form
    a, D = torch.addcmul(a, r, e), torch.addcmul(D, r, d)
    total = (a + b).add_(d)
    return (
        torch.addcmul(e, P, total),
        torch.addcmul(a, P, D).mul_(decay**2),
        b.add(a, alpha=2).mul_(decay * momentum),
        total.mul_(momentum**2),
        D.mul_((decay * momentum) ** 2),
    )


def _scaled(state: State) -> State:
    total = torch.stack(state).sum(0)
    return tuple(x / total for x in state)


def _parts(steps: Tensor, leaks: Tensor) -> tuple[Tensor, Tensor]:
    """(n,), (batch, n) -> (length, 1, parts), (length, batch, parts): parts side by side, the last filled up with 0."""
    length = math.isqrt(len(steps) // 2) + 1
    return _split(steps[:, None], length).mT.contiguous(), _split(leaks.mT, length).mT.contiguous()


def _split(x: Tensor, length: int) -> Tensor:
    """(n, columns) -> (length, parts, columns)."""
    return torch.nn.functional.pad(x, (0, 0, 0, -len(x) % length)).unflatten(0, (-1, length)).transpose(0, 1)


def _borders(P: Tensor, r: Tensor, decay: float, momentum: float) -> tuple[State, State]:
    """The states before each part, and the linear forms of the states after it that have the value e_n."""
    length, batch, parts = r.shape
    unit = torch.eye(5, dtype=r.dtype, device=r.device)
    state = tuple(unit[:, :, None, None].expand(5, 5, batch, parts))
    for i in range(length):
        state = _step(state, P[i], r[i], decay, momentum)
        if i % SCALED == 0 or i == length - 1:
            total = torch.stack(state).sum((0, 1))
            state = tuple(x / total for x in state)
    products = torch.stack(state).permute(3, 2, 0, 1).contiguous()  # (parts, batch, to, from)
    first = unit[0].expand(batch, 5)
    before, after = [first], [first]
    for product in products[:-1]:
        x = (product @ before[-1][..., None])[..., 0]
        before.append(x / x.sum(-1, keepdim=True))
    for product in products.flip(0)[:-1]:
        x = (after[-1][:, None] @ product)[:, 0]
        after.append(x / x.sum(-1, keepdim=True))
    return tuple(torch.stack(before, -1).unbind(1)), tuple(
        torch.stack(after[::-1], -1).unbind(1)
    )  # (batch, parts)
