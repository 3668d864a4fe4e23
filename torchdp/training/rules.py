"""What each example's gradient in a parameter is, for calls of torch on data and parameters.

A rule runs the call with leaves in place of the parameters and claims their uses
(:class:`Record`); it returns None where it does not serve the call.

Notation: n examples of T rows each; g the gradient in a call's output.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn import functional as F

from torchdp.training.calls import Call, Untaken, tensors
from torchdp.training.factors import Form, Products, Rows, Words
from torchdp.training.record import Record, Rule

# Whose channels are dimension 1, and of the others the last ones.
CHANNELS = (F.group_norm, F.batch_norm, F.instance_norm)
NORMS = (F.layer_norm, F.rms_norm, *CHANNELS)


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


def product(r: Record, x: Tensor, W: Tensor, b: Any, turned: bool, f: Any) -> Any:
    """f(x, W, b) = x W^T + b, or x W + b where ``turned``."""
    if not r.fits(x) or x.ndim < 2 or W.ndim != 2 or r.of_data(W) or r.of_data(b):
        return None
    if r.of_weights(b) and b.ndim != 1:
        return None
    # The form needs n alone: by the record it would hold all that is marked.
    n = r.n
    out = f(x, r.alias(W), r.alias(b))
    kept = r.keep(x)

    def form(g: Tensor) -> Form:
        inputs = kept.reshape(n, -1, kept.shape[-1])
        gradients = g.reshape(n, -1, g.shape[-1])
        return Products(gradients, inputs) if turned else Products(inputs, gradients)

    r.claim(W, out, form)
    r.claim(b, out, lambda g: last(n, g, b.numel()))
    return out


def linear(r: Record, call: Call) -> Any:
    given = call.named()
    return product(r, given["input"], given["weight"], given.get("bias"), False, call.func)


def addmm(r: Record, call: Call) -> Any:
    if call.kwargs or len(call.args) != 3:
        return None
    bias, x, W = call.args
    return product(r, x, W, bias, True, lambda x, W, b: call.func(b, x, W))


def matmul(r: Record, call: Call) -> Any:
    if call.kwargs:
        return None
    x, W = call.args
    if x.ndim > 1 and W.ndim > 1 and (r.of_weights(x) or W.ndim > 2):
        return broadcast(r, call)
    if not r.of_weights(W):
        return None
    return product(r, x, W, None, True, lambda x, W, b: call.func(x, W))


def embedding(r: Record, call: Call) -> Any:
    given = call.named()
    ids = given["input"]
    W = given["weight"]
    padding = given.get("padding_idx")
    # max_norm writes the table over; by frequency, one example's gradient would be the others' too.
    unserved = given.get("max_norm") is not None or given.get("scale_grad_by_freq")
    if unserved or given.get("sparse") or not r.fits(ids):
        return None
    n = r.n
    out = call.func(ids, r.alias(W), padding)
    kept = r.keep(ids)

    def form(g: Tensor) -> Form:
        indices = kept.reshape(n, -1)
        rows = g.reshape(n, -1, g.shape[-1])
        if padding is not None:
            padded = indices == padding % len(W)
            rows = rows.masked_fill(padded[..., None], 0.0)
        return Words.of(indices, rows, len(W))

    r.claim(W, out, form)
    return out


def bag(r: Record, call: Call) -> Any:
    """A sum or mean of as many rows of a table for each example."""
    given = call.named()
    special = ("max_norm", "scale_grad_by_freq", "sparse", "per_sample_weights", "padding_idx")
    mode = given.get("mode", "mean")
    # A padding_idx of 0 is one, too, and equal to False.
    unserved = any(given.get(name) is not None and given[name] is not False for name in special)
    if given["input"].ndim != 2 or mode == "max" or unserved:
        return None
    with r:  # what follows is recorded
        rows = F.embedding(given["input"], given["weight"])
        return rows.sum(1) if mode == "sum" else rows.mean(1)


def norm(r: Record, call: Call) -> Any:
    given = call.named()
    x = given["input"]
    w = given.get("weight")
    b = given.get("bias")
    n = r.n
    by_channel = call.func in CHANNELS
    if not r.fits(x, rows=by_channel) or r.of_data(w) or r.of_data(b):
        return None
    affine = {name: r.alias(given.pop(name)) for name in ("weight", "bias") if name in given}
    out = call.func(**given | affine)
    given["input"] = None
    r.constants(*given.values())  # statistics among them
    given["input"] = r.keep(x)

    def added(g: Tensor, source: Any) -> Form:
        return channels(n, g) if by_channel else last(n, g, source.numel())

    def form(g: Tensor) -> Form:
        # The output is w y + b: the gradient in w is that of y, normalised x, times g.
        y = call.func(**given)
        scaled = rows_of(y, n) * rows_of(g, n)
        return added(scaled.reshape(g.shape), w)

    r.claim(w, out, form)
    r.claim(b, out, lambda g: added(g, b))
    return out


def in_plane(value: Any, dims: int, line: int) -> tuple[int, ...]:
    """A convolution's numbers for both sides of a plane.

    Of a line the first side has ``line``.
    """
    sides = (value,) * dims if isinstance(value, int) else tuple(value)
    return sides if dims == 2 else (line, *sides)


def convolution(r: Record, call: Call) -> Any:
    options = call.named()
    x = options.pop("input")
    W = options.pop("weight")
    b = options.pop("bias", None)
    n = r.n
    if not r.fits(x, rows=True) or x.ndim != W.ndim or r.of_data(W) or r.of_data(b):
        return None
    dims = W.ndim - 2
    padding = options.get("padding", 0)
    if dims > 2 or options.get("groups", 1) != 1 or isinstance(padding, str):
        return by_rows(r, call)
    out = call.func(x, r.alias(W), r.alias(b), **options)
    kept = r.keep(x)
    # A convolution is a product of W with the windows of x; one of a line is one of a plane.
    plane = kept if dims == 2 else kept[:, :, None]
    kernel = in_plane(W.shape[2:], dims, 1)
    dilation = in_plane(options.get("dilation", 1), dims, 1)
    stride = in_plane(options.get("stride", 1), dims, 1)
    around = in_plane(padding, dims, 0)

    def form(g: Tensor) -> Form:
        windows = F.unfold(plane, kernel, dilation, around, stride).mT
        return Products(windows, g.flatten(2).mT)

    r.claim(W, out, form)
    r.claim(b, out, lambda g: channels(n, g))
    return out


def by_example(n: int, source: Tensor, kept: tuple[Tensor, ...], f: Any) -> Any:
    """Each example's derivative of ``f(source, *its rows)`` by itself."""

    def derivative(g: Tensor, *x: Tensor) -> Tensor:
        batch = [row[None] for row in x]
        # Under vmap this call sees one example: what comes of it is a function of that one.
        pullback = vjp(lambda w: f(w, *batch), source.detach())[1]
        return pullback(g[None])[0]

    return lambda g: Rows(rows_of(vmap(derivative)(g, *kept), n))


def by_rows(r: Record, call: Call) -> Any:
    """Any call that has a row for each example in and out."""
    args = call.args
    # The data among the arguments; the others are the same for all examples.
    places = [i for i, t in enumerate(args) if r.of_data(t)]
    options = call.kwargs
    if list(tensors(options)) or any(not r.fits(args[i], rows=True) for i in places):
        return None
    out = call.func(*map(r.alias, args), **options)
    if not isinstance(out, Tensor) or not out.ndim or len(out) != r.n:
        raise Untaken(f"{call.name} returns no row for each example")
    kept = tuple(r.keep(args[i]) for i in places)
    constants = [t.detach() if isinstance(t, Tensor) else t for t in args]
    r.constants(*(t for t in args if not r.of_data(t)))
    # Gradients are taken later, under no autocast.
    kind = out.device.type
    half = torch.is_autocast_enabled(kind)
    for j, t in enumerate(args):
        if r.of_weights(t):

            def f(w: Tensor, *x: Tensor, j: int = j) -> Tensor:
                full = list(constants)
                full[j] = w
                for i, row in zip(places, x, strict=True):
                    full[i] = row
                with torch.autocast(kind, enabled=half):
                    return call.func(*full, **options)

            r.claim(t, out, by_example(r.n, t, kept, f))
    return out


def beside(r: Record, z: Tensor, x: Tensor) -> Tensor | None:
    """A leaf with as many rows as data ``x``, n T, in place of ``z``, of parameters.

    ``z`` is the same for all rows, or has a row for each example; else None.
    """
    n = r.n
    leaf = z.detach().reshape((1,) * (x.ndim - z.ndim) + tuple(z.shape))
    if z.ndim <= x.ndim and len(leaf) == 1:
        # The parameter's own gradient adds up all examples; those of T rows are example i's.
        leaf = leaf.expand(len(x), *leaf.shape[1:]).requires_grad_()
        r.claim(z, leaf, lambda g: Rows(rows_of(g, n).reshape(n, -1, z.numel()).sum(1)))
        return leaf
    if z.ndim != x.ndim or not len(z) == len(x) == n:
        return None
    leaf = leaf.clone().requires_grad_()

    def form(g: Tensor) -> Form:
        # Example i's gradient is 0 but for row i, where it is g's.
        square = torch.diag_embed(rows_of(g, n).mT)
        return Rows(square.permute(1, 2, 0).reshape(n, -1))

    r.claim(z, leaf, form)
    return leaf


def broadcast(r: Record, call: Call) -> Any:
    """Data and parameters, each row of the data by itself."""
    args = call.args
    data = [t for t in args if r.of_data(t)]
    # What is written stays what it is.
    written = call.name in IN_PLACE and r.of_weights(args[0])
    if call.kwargs or written or not all(map(r.fits, data)):
        return None
    ndim = max(t.ndim for t in tensors(args))
    # Data of fewer dimensions have other numbers first than examples.
    if not data or any(t.ndim != ndim for t in data):
        return None
    leaves = [beside(r, t, data[0]) if r.of_weights(t) else t for t in args]
    return None if any(t is None for t in leaves) else call.func(*leaves)


def cat(r: Record, call: Call) -> Any:
    given = call.named()
    parts = given["tensors"]
    dim = given.get("dim", 0)
    # Along dimension 0 rows would no longer be examples.
    if any(not t.ndim or len(t) != r.n for t in parts) or dim % parts[0].ndim == 0:
        return None
    return call.func([beside(r, t, t) if r.of_weights(t) else t for t in parts], dim)


def attention(r: Record, call: Call) -> Any:
    """An additive mask of parameters."""
    given = call.named()
    mask = given.get("attn_mask")
    sides = [given[name] for name in ("query", "key", "value")]
    if mask is None or not r.of_weights(mask) or not all(map(r.fits, sides)):
        return None
    leaf = beside(r, mask, given["query"])
    return None if leaf is None else call.func(**given | {"attn_mask": leaf})


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Attention's scores under a mask: True for what is left out, or numbers that are added."""
    if mask is None:
        return scores
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def heads(r: Record, call: Call) -> Any:
    """torch's MultiheadAttention, length first, of calls that have rules."""
    given = call.named()
    sides = [given[name] for name in ("query", "key", "value")]
    W = given["in_proj_weight"]
    b = given["in_proj_bias"]
    count = given["num_heads"]
    special = given.get("use_separate_proj_weight") or given["add_zero_attn"]
    special = special or given["bias_k"] is not None or given.get("average_attn_weights") is False
    if special or sides[0].ndim != 3 or sides[0].shape[1] != r.n:
        return None
    same = all(side is sides[0] for side in sides)
    with r:  # what follows is recorded
        sides = [side.transpose(0, 1) for side in sides]
        if same:
            # One product of all of W, whose norm is cheaper than those of its parts.
            projected = F.linear(sides[0], W, b).chunk(3, -1)
        else:
            biases = (None,) * 3 if b is None else b.chunk(3)
            projected = tuple(map(F.linear, sides, W.chunk(3), biases))
        q, k, v = [x.unflatten(2, (count, -1)).transpose(1, 2) for x in projected]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        mask = given.get("attn_mask")
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (r.n, count))
        padding = given.get("key_padding_mask")
        if padding is not None:
            padding = padding[:, None, None]
        p = masked(masked(scores, mask), padding).softmax(-1)
        if given["dropout_p"]:  # a dropout of 0 would draw, too
            p = F.dropout(p, given["dropout_p"], given.get("training", True))
        values = (p @ v).transpose(1, 2).flatten(2)
        out = F.linear(values, given["out_proj_weight"], given["out_proj_bias"])
        weights = p.mean(1) if given.get("need_weights", True) else None
        return out.transpose(0, 1), weights


def recurrent(r: Record, call: Call) -> Any:
    """torch's recurrent layers, step by step, of calls that have rules."""
    x, states, weights, biased, layers, dropout, training, both, first = call.args
    if isinstance(weights, Tensor):  # packed sequences
        return None
    states = states if call.func is torch._VF.lstm else (states,)
    cell = CELLS[call.func]
    with r:  # what follows is recorded
        x = x if first else x.transpose(0, 1)
        if not r.fits(x, rows=True) or any(r.of_weights(state) for state in states):
            return None
        uses = iter(weights)
        ends: list[list[Tensor]] = []
        for layer in range(layers):
            sides = []
            for backwards in range(1 + both):
                W = next(uses)
                U = next(uses)
                b, c = (next(uses), next(uses)) if biased else (None, None)
                # A state that is no data is the same for all examples, as zeros are.
                start = [r.data(state[len(ends)]) for state in states]
                inputs = F.linear(x, W, b).unbind(1)
                outputs = []
                h = start
                for gates in reversed(inputs) if backwards else inputs:
                    h = cell(gates, F.linear(h[0], U, c), h)
                    outputs.append(h[0])
                ends.append(h)
                sides.append(torch.stack(outputs[::-1] if backwards else outputs, 1))
            x = torch.cat(sides, 2) if both else sides[0]
            if dropout and training and layer < layers - 1:
                x = F.dropout(x, dropout)
        last = [torch.stack(state) for state in zip(*ends, strict=True)]
        return (x if first else x.transpose(0, 1), *last)


def _lstm(inputs: Tensor, own: Tensor, state: list[Tensor]) -> list[Tensor]:
    """The next state of gates i, f, g, o."""
    i, f, g, o = (inputs + own).chunk(4, 1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * cell.tanh(), cell]


def _gru(inputs: Tensor, own: Tensor, state: list[Tensor]) -> list[Tensor]:
    """The next state of gates r, z, n."""
    size = 2 * state[0].shape[1]
    r, z = (inputs[:, :size] + own[:, :size]).sigmoid().chunk(2, 1)
    n = (inputs[:, size:] + r * own[:, size:]).tanh()
    return [n + z * (state[0] - n)]


CELLS: dict[Any, Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]] = {
    torch._VF.lstm: _lstm,
    torch._VF.gru: _gru,
    torch._VF.rnn_tanh: lambda inputs, own, state: [(inputs + own).tanh()],
    torch._VF.rnn_relu: lambda inputs, own, state: [(inputs + own).relu()],
}

# By which parameters meet data element by element.
IN_PLACE = "__iadd__ __isub__ __imul__ __itruediv__ add_ sub_ mul_ div_".split()
OPERATORS = (
    "add sub mul div __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__"
).split()
RULES: dict[Any, Rule] = {
    F.linear: linear,
    torch.addmm: addmm,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    F.embedding: embedding,
    F.embedding_bag: bag,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: heads,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    torch.where: broadcast,
    torch.cat: cat,
    F.conv_transpose1d: by_rows,
    F.conv_transpose2d: by_rows,
    F.bilinear: by_rows,
    torch.bilinear: by_rows,
    F.prelu: by_rows,
    torch.prelu: by_rows,
    torch.einsum: by_rows,
    torch.mul: broadcast,
    torch.add: broadcast,
    torch.sub: broadcast,
    torch.div: broadcast,
}
RULES |= dict.fromkeys(NORMS, norm)
RULES |= dict.fromkeys(CELLS, recurrent)
RULES |= {getattr(Tensor, name): broadcast for name in OPERATORS + IN_PLACE}
