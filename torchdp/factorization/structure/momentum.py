"""Gaussian paths with momentum that are observed: variances and draws of all their points, without a subtraction.

The path x_t = decay x_{t-1} + rate_t v_t, v_t = momentum v_{t-1} + N(0, P_t), from 0, is seen at each t through noise
of precision leaks_t. Let (a, b; b, d) be the covariance of (x_t, v_t) given what was seen until t, D = a d - b^2, and e
the factor by which the determinant of the precision grew. Then e (1, a, b, d, D) moves by linear maps alone, one to go
a step and one to see,

    d <- momentum^2 d + P e       b <- decay momentum b + rate d       D <- decay^2 (momentum^2 D + P a)
    a <- decay^2 a + rate (2 decay momentum b + rate d)       then       e <- e + leak a       d <- d + leak D

(from the new d and the old a and b) whose numbers are not negative: products of 5 x 5 matrices of such numbers, in any
order. Steps are taken in parts side by side: the product of each part, the states at their borders, then the points.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.workloads import RunningSums

State = tuple[Tensor, ...]  # e, a, b, d, D, or what a linear form has for them
SCALED = 8  # steps after which a state is made one large


@dataclass(frozen=True)
class Motion:
    """How a path moves: decay and momentum in (0, 1], rates positive, (n,)."""

    decay: float
    momentum: float
    rates: Tensor

    @classmethod
    def of(cls, W: RunningSums) -> "Motion":
        ones = torch.ones(W.steps, dtype=torch.float64, device=W.device)
        return cls(W.decay, W.momentum, ones if W.rates is None else W.rates)


def variances(steps: Tensor, leaks: Tensor, motion: Motion) -> Tensor:
    """Of each point of the path, given what is seen: (n,), (batch, n) -> (batch, n).

    The variance of x_t is the derivative of log e_n by leaks_t, the quotient of two sums of products, each over all n
    steps. A step rounds a product at most 9 times, a border of parts 6 times: the relative error is at most
    (10 n + 100) eps, underflow apart.
    Source: the matrix determinant lemma; entries of the second exterior power of the Riccati equation's linear form.
    """
    n, (P, r, rates) = len(steps), _parts(steps, leaks, motion)
    forward, state = _borders(P, r, rates, motion)
    forms = []
    for i in reversed(range(len(P))):
        forms.append(state)
        state = _back(state, P[i], r[i], rates[i], motion)
        state = _scaled(state) if i % SCALED == 0 else state
    found, state = torch.empty_like(r), forward
    for i in range(len(P)):
        state = _step(state, P[i], r[i], rates[i], motion)
        state = _scaled(state) if i % SCALED == 0 else state
        e, a, b, d, D = state
        to_e, to_a, to_b, to_d, to_D = forms.pop()
        seen = (to_e * a).addcmul_(to_d, D)
        whole = (to_e * e).addcmul_(to_a, a).addcmul_(to_b, b).addcmul_(to_d, d).addcmul_(to_D, D)
        torch.div(seen, whole, out=found[i])
    return found.permute(1, 2, 0).flatten(1)[:, :n]


def draw(steps: Tensor, leaks: Tensor, motion: Motion, size: int, draws: Draws) -> Tensor:
    """The path given that 0 was seen at every t: (n,), (n,) -> (n, size), independent columns; n size normals.

    From the last point on: v_t given x_t and v_{t+1} is Gaussian, and x_{t-1} = (x_t - rate_t v_t) / decay.
    """
    n, momentum, (P, r, rates) = len(steps), motion.momentum, _parts(steps, leaks[None], motion)
    state, _ = _borders(P, r, rates, motion)
    kept = []
    for i in range(len(P)):
        state = _scaled(_step(state, P[i], r[i], rates[i], motion))
        kept.append(torch.stack([state[1] / state[0], state[2] / state[1], state[4] / state[1]]))
    variance, share, rest = torch.stack(kept, -1)[:, 0].flatten(1)[:, :n].flip(1)  # of x; of v in x; v's given x
    ahead = torch.nn.functional.pad(momentum / steps[1:].flip(0), (1, 0))  # what v_{t+1} tells of v_t
    whole = 1 + momentum * rest * ahead
    to_x, to_v = share / whole, rest * ahead / whole
    normals = draws.normal((n, size))
    fresh = (rest / whole).sqrt()[:, None] * torch.nn.functional.pad(normals[1:], (0, 0, 0, 1))
    columns = to_x[:, None], to_v[:, None], motion.rates.flip(0)[:, None], fresh
    to_x, to_v, rates, fresh = (_split(y, len(P)) for y in columns)
    fresh = torch.nn.functional.pad(fresh, (2, 0))  # two columns more: what a part makes of its first x and v
    parts = fresh.shape[1]  # (length, parts, columns)
    x, v = torch.eye(2, size + 2, dtype=rest.dtype, device=rest.device)[:, None].expand(-1, parts, -1)
    path = torch.empty_like(fresh)
    for i in range(len(P)):
        path[i] = x
        v = to_x[i] * x + to_v[i] * v + fresh[i]
        x = (x - rates[i] * v) / motion.decay
    start = variance[0].sqrt() * normals[0], torch.zeros_like(normals[0])
    own, by_x, by_v = path[..., 2:], path[..., :1], path[..., 1:2]
    for k in range(parts):
        own[:, k] += by_x[:, k] * start[0] + by_v[:, k] * start[1]
        start = tuple(y[k, 2:] + y[k, 0] * start[0] + y[k, 1] * start[1] for y in (x, v))
    return own.transpose(0, 1).flatten(0, 1)[:n].flip(0)


def _step(state: State, P: Tensor, r: Tensor, rate: Tensor, motion: Motion) -> State:
    """A step, then what is seen there."""
    decay, momentum = motion.decay, motion.momentum
    e, a, b, d, D = state
    d = (P * e).add_(d, alpha=momentum**2)
    D = (P * a).add_(D, alpha=momentum**2).mul_(decay**2)
    moved = d * rate
    a = moved.add(b, alpha=2 * decay * momentum).mul_(rate).add_(a, alpha=decay**2)
    b = moved.add_(b, alpha=decay * momentum)
    return torch.addcmul(e, r, a), a, b, torch.addcmul(d, r, D), D


def _back(form: State, P: Tensor, r: Tensor, rate: Tensor, motion: Motion) -> State:
    """The linear form of the state before that has the form's value after: the transpose of :func:`_step`."""
    decay, momentum = motion.decay, motion.momentum
    e, a, b, d, D = form
    a, D = torch.addcmul(a, r, e), torch.addcmul(D, r, d)
    moved = a * rate
    total = (moved + b).mul_(rate).add_(d)
    return (
        torch.addcmul(e, P, total),
        torch.addcmul(a, P, D).mul_(decay**2),
        moved.mul_(2).add_(b).mul_(decay * momentum),
        total.mul_(momentum**2),
        D.mul_((decay * momentum) ** 2),
    )


def _scaled(state: State) -> State:
    total = torch.stack(state).sum(0)
    return tuple(x / total for x in state)


def _parts(steps: Tensor, leaks: Tensor, motion: Motion) -> Iterator[Tensor]:
    """Steps and rates (length, 1, parts), leaks (length, batch, parts): parts side by side, the last filled up by 0."""
    length = math.isqrt(len(steps) // 2) + 1
    given = steps[:, None], leaks.mT, motion.rates[:, None]
    return (_split(x, length).mT.contiguous() for x in given)


def _split(x: Tensor, length: int) -> Tensor:
    """(n, columns) -> (length, parts, columns)."""
    return torch.nn.functional.pad(x, (0, 0, 0, -len(x) % length)).unflatten(0, (-1, length)).transpose(0, 1)


def _borders(P: Tensor, r: Tensor, rates: Tensor, motion: Motion) -> tuple[State, State]:
    """The states before each part, and the linear forms of the states after it that have the value e_n."""
    length, batch, parts = r.shape
    unit = torch.eye(5, dtype=r.dtype, device=r.device)
    state = tuple(unit[:, :, None, None].expand(5, 5, batch, parts))
    for i in range(length):
        state = _step(state, P[i], r[i], rates[i], motion)
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
    return tuple(torch.stack(before, -1).unbind(1)), tuple(torch.stack(after[::-1], -1).unbind(1))
