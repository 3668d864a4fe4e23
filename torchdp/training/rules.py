"""What each example's gradient in a parameter is, for the calls of torch that take data and
parameters together.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn import functional as F

from torchdp.training.factors import Form, Products, Rows, Words
from torchdp.training.record import Record, Rule, Untaken, named, tensors

NORMS = {F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm}
IN_PLACE = {"__iadd__", "__isub__", "__imul__", "__itruediv__", "add_", "sub_", "mul_", "div_"}


def rows_of(b: Tensor, n: int) -> Tensor:
    """(n, size), at least float32."""
    return b.reshape(n, -1).to(torch.promote_types(b.dtype, torch.float32))


def last(n: int, b: Tensor, size: int) -> Rows:
    """Of what is added along the last dimensions: (n T, ..., size) -> (n, size)."""
    rows = rows_of(b, n)
    return Rows(rows if rows.shape[1] == size else rows.reshape(n, -1, size).sum(1))


def channels(n: int, b: Tensor) -> Rows:
    """Of what is added along dimension 1: (n, C, ...) -> (n, C)."""
    return Rows(rows_of(b, n).reshape(n, b.shape[1], -1).sum(2))


def product(r: Record, x: Tensor, W: Tensor, b: Any, turned: bool, call: Any) -> Any:
    """x W^T + b, or x W + b where ``turned``."""
    if not r.fits(x) or x.ndim < 2 or W.ndim != 2 or r.of_data(W) or r.of_data(b):
        return None
    if r.of_weights(b) and b.ndim != 1:
        return None
    out, n, kept = call(x, r.alias(W), r.alias(b)), r.n, r.keep(x)

    def form(g: Tensor) -> Form:
        pair = kept.reshape(n, -1, kept.shape[-1]), g.reshape(n, -1, g.shape[-1])
        return Products(*pair[::-1]) if turned else Products(*pair)

    r.claim(W, out, form)
    r.claim(b, out, lambda g: last(n, g, b.numel()))
    return out


def linear(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(func, args, kwargs)
    return product(r, call["input"], call["weight"], call.get("bias"), False, func)


def addmm(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 3:
        return None
    return product(r, args[1], args[2], args[0], True, lambda x, W, b: func(b, x, W))


def matmul(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs or not r.of_weights(args[1]):
        return None
    return product(r, args[0], args[1], None, True, lambda x, W, b: func(x, W))


def embedding(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(func, args, kwargs)
    ids, W, padding = call["input"], call["weight"], call.get("padding_idx")
    unserved = call.get("max_norm") is not None or call.get("scale_grad_by_freq")
    if unserved or call.get("sparse") or not r.fits(ids):
        return None
    out, n, kept = func(ids, r.alias(W), padding), r.n, r.keep(ids)

    def form(g: Tensor) -> Form:
        places, g = kept.reshape(n, -1), g.reshape(n, -1, g.shape[-1])
        if padding is not None:
            g = g.masked_fill((places == padding % len(W))[..., None], 0.0)
        return Words.of(places, g, len(W))

    r.claim(W, out, form)
    return out


def norm(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(func, args, kwargs)
    x, w, b, n = call["input"], call.get("weight"), call.get("bias"), r.n
    second = func in (F.group_norm, F.batch_norm)  # channels are dimension 1
    if not r.fits(x, rows=second) or r.of_data(w) or r.of_data(b):
        return None
    own = {name: r.alias(call.pop(name)) for name in ("weight", "bias") if name in call}
    out = func(**call | own)
    call["input"] = r.keep(x)

    def added(g: Tensor, source: Any) -> Form:
        return channels(n, g) if second else last(n, g, source.numel())

    def form(g: Tensor) -> Form:
        return added((rows_of(func(**call), n) * rows_of(g, n)).reshape(g.shape), w)

    r.claim(w, out, form)
    r.claim(b, out, lambda g: added(g, b))
    return out


def in_plane(value: Any, dims: int, before: int) -> tuple[int, ...]:
    """A convolution's numbers for both sides of a plane; a line is one whose first side has
    ``before``.
    """
    sides = (value,) * dims if isinstance(value, int) else tuple(value)
    return sides if dims == 2 else (before, *sides)


def convolution(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(func, args, kwargs)
    x, W, b, n = call.pop("input"), call.pop("weight"), call.pop("bias", None), r.n
    if not r.fits(x, rows=True) or x.ndim != W.ndim or r.of_data(W) or r.of_data(b):
        return None
    out, kept = func(x, r.alias(W), r.alias(b), **call), r.keep(x)
    dims, padding = W.ndim - 2, call.get("padding", 0)
    if dims > 2 or call.get("groups", 1) != 1 or isinstance(padding, str):
        r.claim(W, out, alone(n, W, (kept,), lambda w, x: func(x, w, **call)))
    else:
        plane = kept if dims == 2 else kept[:, :, None]
        kernel = in_plane(W.shape[2:], dims, 1)
        dilation = in_plane(call.get("dilation", 1), dims, 1)
        stride = in_plane(call.get("stride", 1), dims, 1)
        around = in_plane(padding, dims, 0)

        def form(g: Tensor) -> Form:
            windows = F.unfold(plane, kernel, dilation, around, stride).mT
            return Products(windows, g.flatten(2).mT)

        r.claim(W, out, form)
    r.claim(b, out, lambda g: channels(n, g))
    return out


def alone(n: int, source: Tensor, kept: tuple[Tensor, ...], call: Any) -> Any:
    """Each example's derivative of ``call(source, *its rows)`` by itself."""

    def one(g: Tensor, *x: Tensor) -> Tensor:
        return vjp(lambda w: call(w, *(each[None] for each in x)), source.detach())[1](g[None])[0]

    return lambda g: Rows(rows_of(vmap(one)(g, *kept), n))


def each(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    """Any call that has a row for each example in and out."""
    places = [i for i, t in enumerate(args) if r.of_data(t)]
    if kwargs or any(not r.fits(args[i], rows=True) for i in places):
        return None
    out = func(*(r.alias(t) for t in args))
    if not isinstance(out, Tensor) or not out.ndim or len(out) != r.n:
        raise Untaken(f"{func.__name__} returns no row for each example")
    kept = tuple(r.keep(args[i]) for i in places)
    for j, t in enumerate(args):
        if r.of_weights(t):

            def call(w: Tensor, *x: Tensor, j: int = j) -> Tensor:
                full = [value.detach() if isinstance(value, Tensor) else value for value in args]
                full[j] = w
                for i, row in zip(places, x, strict=True):
                    full[i] = row
                return func(*full)

            r.claim(t, out, alone(r.n, t, kept, call))
    return out


def spread(r: Record, z: Tensor, ndim: int) -> Tensor | None:
    """A leaf with a row for each example in place of ``z``, which is the same for all."""
    own = z.detach().reshape((1,) * (ndim - z.ndim) + tuple(z.shape))
    if z.ndim > ndim or (ndim and len(own) != 1):
        return None
    own = own.expand(r.n, *own.shape[1:]).requires_grad_()
    r.claim(z, own, lambda g: Rows(rows_of(g, r.n)))
    return own


def diagonal(r: Record, z: Tensor) -> Tensor:
    """A leaf in place of ``z``, whose row i is example i's."""
    own = z.detach().clone().requires_grad_()
    r.claim(
        z,
        own,
        lambda g: Rows(torch.diag_embed(rows_of(g, r.n).mT).permute(1, 2, 0).reshape(r.n, -1)),
    )
    return own


def broadcast(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs:
        return None
    i = int(not r.of_weights(args[0]))
    z, x = args[i], args[1 - i]
    if not r.of_weights(z) or not r.fits(x, rows=True) or (i == 0 and func.__name__ in IN_PLACE):
        return None
    own = spread(r, z, x.ndim)
    if own is None and z.ndim == x.ndim and len(z) == r.n > 1:
        own = diagonal(r, z)
    return None if own is None else func(own, x) if i == 0 else func(x, own)


def cat(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(func, args, kwargs)
    parts, dim = call["tensors"], call.get("dim", 0)
    if any(not t.ndim or len(t) != r.n for t in parts) or dim % parts[0].ndim == 0:
        return None
    return func([diagonal(r, t) if r.of_weights(t) else t for t in parts], dim)


def where(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 3:
        return None
    ndim = max(t.ndim for t in tensors(args))
    if any(r.of_data(t) and (t.ndim != ndim or len(t) != r.n) for t in tensors(args)):
        return None
    new = [spread(r, t, ndim) if r.of_weights(t) else t for t in args]
    return None if any(t is None for t in new) else func(*new)


def attention(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    """An additive mask of parameters."""
    call = named(func, args, kwargs)
    mask, sides = call.get("attn_mask"), [call[name] for name in ("query", "key", "value")]
    if mask is None or not r.of_weights(mask) or not all(r.fits(side, rows=True) for side in sides):
        return None
    own = spread(r, mask, call["query"].ndim)
    return None if own is None else func(**call | {"attn_mask": own})


def heads(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    """torch's MultiheadAttention, length first, of calls that have rules."""
    call = named(func, args, kwargs)
    sides = [call[name] for name in ("query", "key", "value")]
    W, b, count = call["in_proj_weight"], call["in_proj_bias"], call["num_heads"]
    special = call.get("use_separate_proj_weight") or call["add_zero_attn"]
    special = special or call["bias_k"] is not None or call.get("average_attn_weights") is False
    if special or sides[0].ndim != 3 or sides[0].shape[1] != r.n:
        return None
    same = all(side is sides[0] for side in sides)
    with r:
        sides = [side.transpose(0, 1) for side in sides]
        if same:
            projected = list(F.linear(sides[0], W, b).chunk(3, -1))
        else:
            bs = (None,) * 3 if b is None else b.chunk(3)
            projected = [F.linear(*each) for each in zip(sides, W.chunk(3), bs, strict=True)]
        q, k, v = [x.unflatten(2, (count, -1)).transpose(1, 2) for x in projected]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        mask, padding = call.get("attn_mask"), call.get("key_padding_mask")
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (r.n, count))
        for one in (mask, None if padding is None else padding[:, None, None]):
            if one is not None:
                scores = (
                    scores.masked_fill(one, -math.inf) if one.dtype == torch.bool else scores + one
                )
        p = scores.softmax(-1)
        p = F.dropout(p, call["dropout_p"], call.get("training", True)) if call["dropout_p"] else p
        out = F.linear(
            (p @ v).transpose(1, 2).flatten(2), call["out_proj_weight"], call["out_proj_bias"]
        )
        return out.transpose(0, 1), p.mean(1) if call.get("need_weights", True) else None


OPERATORS = "add sub mul div __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__".split()
RULES: dict[Any, Rule] = {
    F.linear: linear, torch.addmm: addmm, torch.matmul: matmul, Tensor.matmul: matmul, Tensor.__matmul__: matmul,
    F.embedding: embedding, F.scaled_dot_product_attention: attention, F.multi_head_attention_forward: heads,
    F.conv1d: convolution, F.conv2d: convolution, F.conv3d: convolution, torch.where: where, torch.cat: cat,
    **{func: each for func in (F.conv_transpose1d, F.conv_transpose2d, F.bilinear, torch.bilinear, F.prelu, torch.prelu,
                               torch.einsum)},
    **{func: norm for func in NORMS},
    **{getattr(Tensor, name): broadcast for name in [*OPERATORS, *sorted(IN_PLACE)]},
    **{func: broadcast for func in (torch.mul, torch.add, torch.sub, torch.div)},
}  # fmt: skip
