"""What each example's gradient in a parameter is, for the calls of torch that take data and parameters together."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn import functional as F

from torchdp.training.factors import Form, Products, Rows, Words
from torchdp.training.record import ATTENTION, Record, Rule, Untaken, named, tensors

CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TABLE = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
BATCH_NORM = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
NORMS: dict[Any, tuple[str, ...]] = {
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "normalized_shape", "weight", "eps"),
    F.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
    F.batch_norm: BATCH_NORM,
}
HEADS = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
    "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights",
    "attn_mask", "use_separate_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip
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


def product(r: Record, x: Tensor, W: Tensor, b: Tensor | None, turned: bool, call: Any) -> Any:
    """x W^T + b, or x W + b where ``turned``."""
    if not r.fits(x) or x.ndim < 2 or W.ndim != 2 or r.of_data(W) or r.of_data(b):
        return None
    if b is not None and r.of_weights(b) and b.ndim != 1:
        return None
    out, n, kept = call(x, r.alias(W), r.alias(b)), r.n, r.keep(x)

    def form(g: Tensor) -> Form:
        pair = kept.reshape(n, -1, kept.shape[-1]), g.reshape(n, -1, g.shape[-1])
        return Products(*pair[::-1]) if turned else Products(*pair)

    r.claim(W, out, form)
    if b is not None:
        r.claim(b, out, lambda g: last(n, g, b.numel()))
    return out


def linear(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(("input", "weight", "bias"), args, kwargs)
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
    call = named(TABLE, args, kwargs)
    ids, W, padding = call["input"], call["weight"], call.get("padding_idx")
    if (
        call.get("max_norm") is not None
        or call.get("scale_grad_by_freq")
        or call.get("sparse")
        or not r.fits(ids)
    ):
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
    call = named(NORMS[func], args, kwargs)
    x, w, b, n = call["input"], call.get("weight"), call.get("bias"), r.n
    second = func in (F.group_norm, F.batch_norm)  # channels are dimension 1
    if not r.fits(x, rows=second) or r.of_data(w) or r.of_data(b):
        return None
    own = {name: r.alias(call[name]) for name in ("weight", "bias") if name in call}
    out, kept = func(**call | own), r.keep(x)
    plain = {name: value for name, value in call.items() if name not in ("input", "weight", "bias")}
    if w is not None:

        def form(g: Tensor) -> Form:
            scaled = rows_of(func(kept, **plain), n) * rows_of(g, n)
            return channels(n, scaled.reshape(g.shape)) if second else last(n, scaled, w.numel())

        r.claim(w, out, form)
    if b is not None:
        r.claim(b, out, lambda g: channels(n, g) if second else last(n, g, b.numel()))
    return out


def convolution(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    call = named(CONVOLUTION, args, kwargs)
    x, W, b, n = call["input"], call["weight"], call.get("bias"), r.n
    if not r.fits(x, rows=True) or x.ndim != W.ndim or r.of_data(W) or r.of_data(b):
        return None
    out, kept = func(**call | {"weight": r.alias(W), "bias": r.alias(b)}), r.keep(x)
    rest = {name: value for name, value in call.items() if name not in ("input", "weight", "bias")}
    dims, padding, groups = W.ndim - 2, call.get("padding", 0), call.get("groups", 1)
    if dims > 2 or groups != 1 or isinstance(padding, str):
        r.claim(W, out, alone(n, W, (kept,), lambda w, x: func(x, w, **rest)))
    else:
        kernel, line, steps = (
            tuple(W.shape[2:]),
            dims == 1,
            (call.get("dilation", 1), call.get("stride", 1)),
        )
        dilation, stride = ((v,) * dims if isinstance(v, int) else tuple(v) for v in steps)
        padding = (padding,) * dims if isinstance(padding, int) else tuple(padding)
        if line:
            kernel, dilation, stride, padding = (
                (1, *kernel),
                (1, *dilation),
                (1, *stride),
                (0, *padding),
            )

        def form(g: Tensor) -> Form:
            windows = F.unfold(
                kept[:, :, None] if line else kept, kernel, dilation, padding, stride
            ).mT
            return Products(windows, g.flatten(2).mT)

        r.claim(W, out, form)
    if b is not None:
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
    call = named(("tensors", "dim"), args, kwargs)
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
    call = named(ATTENTION, args, kwargs)
    mask, sides = call.get("attn_mask"), [call[name] for name in ATTENTION[:3]]
    if mask is None or not r.of_weights(mask) or not all(r.fits(side, rows=True) for side in sides):
        return None
    own = spread(r, mask, call["query"].ndim)
    return None if own is None else func(**call | {"attn_mask": own})


def heads(r: Record, func: Any, args: Any, kwargs: Any) -> Any:
    """torch's MultiheadAttention, length first, of calls that have rules."""
    call = named(HEADS, args, kwargs)
    q, k, v, W, b, count = (
        call[name] for name in (*HEADS[:3], "in_proj_weight", "in_proj_bias", "num_heads")
    )
    plain = (
        not call.get("use_separate_proj_weight")
        and call["bias_k"] is None
        and not call["add_zero_attn"]
    )
    if not plain or q.ndim != 3 or q.shape[1] != r.n or call.get("average_attn_weights") is False:
        return None
    same = q is k is v
    with r:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        if same:
            q, k, v = F.linear(q, W, b).chunk(3, -1)
        else:
            bs = (None,) * 3 if b is None else b.chunk(3)
            q, k, v = (F.linear(x, w, c) for x, w, c in zip((q, k, v), W.chunk(3), bs, strict=True))
        q, k, v = (x.unflatten(2, (count, -1)).transpose(1, 2) for x in (q, k, v))
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
