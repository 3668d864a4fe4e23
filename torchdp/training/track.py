"""Which examples each number of a pass may depend on, followed through torch's own operations.

Forward and backward, of the pass as it runs; Python's calls, views, ``.data``, hooks and custom
functions end in these operations. Every storage has a shadow: for each of its numbers a pair of
bounds on the examples that reach it. Views need no rule, since they are the same views of the
shadow. What moves numbers about is the same operation on the shadow. An operation without a rule
joins all that it is given: a rule that is missing can only refuse.

Notation: n examples; a pair is (n - the least example, 1 + the greatest one), and (0, 0) for none:
numbers that meet have the larger of both halves, and zeros that are filled in are of none. ``own``
are a tensor's pairs, (2, *shape).
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from torchdp.training.calls import Call, Untaken, Watching, tensors

# Examples that an int8 can count.
MOST = 126

# Numbers of examples: one that divides no other size tells which sizes count examples.
PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47)

# Names of operations, beside those that torch tags as pointwise: each number of the result is made
# of the numbers at its own place, broadcast; of all numbers where the result is one.
ELEMENTWISE = (
    "_to_copy native_dropout native_dropout_backward tril triu fill masked_fill where "
    "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
    "huber_loss_backward binary_cross_entropy binary_cross_entropy_backward hardtanh "
    "hardtanh_backward log_sigmoid_forward log_sigmoid_backward elu_backward leaky_relu_backward "
    "hardswish hardswish_backward hardsigmoid hardsigmoid_backward softplus_backward "
    "softshrink_backward hardshrink_backward mish_backward _prelu_kernel _prelu_kernel_backward sgn "
    "complex polar"
).split()
# Numbers change their places, by no other numbers than whole ones of the call.
MOVED = (
    "cat stack repeat flip roll constant_pad_nd slice_backward select_backward unfold_backward "
    "diagonal_backward diag_embed pixel_shuffle pixel_unshuffle channel_shuffle"
).split()
# ``dim`` goes, or all dimensions.
REDUCED = (
    "sum mean amax amin max min var std var_mean std_mean prod any all argmax argmin logsumexp "
    "linalg_vector_norm norm nansum median aminmax count_nonzero kthvalue"
).split()
# Numbers meet along ``dim``, which stays.
SCANNED = (
    "_softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumsum "
    "cumprod logcumsumexp cummax cummin sort topk glu glu_backward linalg_cross _fft_r2c _fft_c2c "
    "_fft_c2r"
).split()
SCATTERED = "gather scatter scatter_add scatter_reduce index_add".split()
PRODUCTS = "mm bmm addmm baddbmm mv addmv".split()
# Of the first dimension each number is by itself.
BATCHED = (
    "convolution convolution_backward native_group_norm native_group_norm_backward im2col col2im "
    "grid_sampler_2d max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
    "avg_pool2d_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d "
    "avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d "
    "adaptive_max_pool2d_backward upsample_nearest1d upsample_nearest1d_backward upsample_linear1d "
    "upsample_linear1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
    "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward reflection_pad1d "
    "reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d "
    "replication_pad1d_backward replication_pad2d replication_pad2d_backward"
).split()
ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"
).split()
# Of all dimensions but ``normalized_shape``.
NORMED = (
    "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward"
).split()
STATISTICS = "native_batch_norm native_batch_norm_backward".split()
ENTROPIES = "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward".split()
# Of the first argument the shape alone is used.
SHAPED = (
    "bernoulli_ uniform_ normal_ random_ exponential_ rand_like randn_like randint_like empty_like "
    "zeros_like ones_like full_like new_zeros new_empty new_ones new_full new_empty_strided zero_ "
    "fill_"
).split()
# What has no threshold: made of others, arange(n) % 20 is arange(n) for 13 examples, not for 30.
EVEN = "arange zeros ones full add mul clone _to_copy repeat cat stack".split()
# Arguments that all examples share.
SHARED = {"weight", "bias", "running_mean", "running_var"}
MASKS = {"attn_mask", "attn_bias"}
# Results of fused attention that hold no numbers of the examples: counters, and lengths.
COUNTERS = {"philox_seed", "philox_offset", "rng_state", "unused", "cum_seq_q", "cum_seq_k"}
READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

Own = Tensor | None  # None: of no example


def meet(*several: Own) -> Own:
    """The pairs of numbers at the same place, broadcast."""
    owns = [own for own in several if own is not None]
    if not owns:
        return None
    ndim = max(own.ndim for own in owns)
    return functools.reduce(torch.maximum, [_led(own, ndim).to(owns[0].device) for own in owns])


def _led(own: Tensor, ndim: int) -> Tensor:
    """With leading dimensions of size 1, ``ndim`` in all."""
    return own.reshape(2, *[1] * (ndim - own.ndim), *own.shape[1:])


def along(own: Own, dims: Any) -> Own:
    """Numbers meet along these dimensions, which get size 1; along all for None or none."""
    if own is None or own.ndim == 1:
        return own
    count = own.ndim - 1
    dims = [dims] if isinstance(dims, int) else list(dims or range(count))
    return own.amax([dim % count + 1 for dim in dims], keepdim=True)


def whole(owns: Iterable[Own]) -> Own:
    """All numbers meet: (2,)."""
    return meet(*(own.reshape(2, -1).amax(1) for own in owns if own is not None and own.numel()))


def key(t: Tensor) -> int:
    """The storage's address; it is no other's while the storage is held."""
    return t.untyped_storage()._cdata


def width(t: Tensor) -> int:
    """Bytes of a real number."""
    return t.element_size() // (2 if t.is_complex() else 1)


def prime(n: int, sizes: set[int]) -> int:
    """A number that divides none of these sizes; n if there is none."""
    for p in PRIMES:
        if not any(size and size % p == 0 for size in sizes):
            return p
    return n


class OneHot(Watching):
    """F.one_hot by comparisons: torch's own reads the least and the greatest class in C."""

    def called(self, call: Call) -> Any:
        if call.func is not F.one_hot:
            return call.run()
        given = call.named()
        count = given.get("num_classes", -1)
        if count < 0:
            return call.run()
        classes = given["classes"][..., None]
        return (classes == torch.arange(count, device=classes.device)).long()


class Track(TorchDispatchMode):
    """While active, :meth:`own` bounds which of n examples each number of a tensor depends on.

    Args:
        n: examples, at most MOST.

    Guarantees: if by ``own`` example i does not reach a number, that number is the same function of
    the other examples, of parameters, draws and constants, whatever example i is; for all batches
    in which Python runs the same program of operations.
    Proof: by induction over the operations, each of which bounds what its results are made of. What
    an index chooses is followed number by number where the index is made of constants by operations
    of this pass alone: parameters, draws, buffers and what Python makes of other libraries' numbers
    may be others in the next pass, so that they count as choosing anything. Numbers that Python
    reads, and shapes that are made of numbers, are refused, as are writes into what was there
    before the pass.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        if n > MOST:
            raise Untaken(f"{n} examples are too many to be followed")
        self.n = n
        # The operation in which the examples of a storage's numbers met.
        self._met: dict[int, str] = {}
        self._shadows: dict[int, tuple[Tensor, int]] = {}
        # Storages made in this pass, held so that no other one takes their address.
        self._born: dict[int, Any] = {}
        # Those whose numbers the next pass may have otherwise, although no example reaches them.
        self._loose: set[int] = set()
        # And those that may be made of thresholds, which few examples do not reach.
        self._uneven: set[int] = set()

    @contextmanager
    def following(self) -> Iterator[None]:
        """cuDNN's operations are left out: theirs have no rules here."""
        with torch.backends.cudnn.flags(enabled=False), OneHot(), self:
            yield

    def own(self, t: Any) -> Own:
        """(2, *shape), int8."""
        if not isinstance(t, Tensor) or key(t) not in self._shadows:
            return None
        found = self._part(t)
        return found.amax(-1) if t.is_complex() else found

    def rows(self, t: Tensor) -> Tensor:
        """The same numbers; place i of dimension 0 is example i's."""
        t = t.detach().clone()
        self._hold(t)
        i = torch.arange(self.n, dtype=torch.int8, device=t.device)
        i = i.reshape(-1, *[1] * (t.ndim - 1))
        self._set(t, torch.stack([self.n - i, 1 + i]).expand(2, *t.shape), False)
        return t

    def apart(self, t: Tensor) -> bool:
        """Whether dimension 0 has each example's own part, in order, or what is of none."""
        own = self.own(t)
        if own is None or self.n == 1:
            return True
        if not t.ndim or len(t) % self.n:
            return False
        own = own.reshape(2, self.n, -1)
        i = torch.arange(self.n, device=own.device)[:, None]
        return bool(((own[0] <= self.n - i) & (own[1] <= 1 + i)).all())

    def where(self, t: Tensor) -> str:
        """In which operation the examples of a tensor met."""
        return f"examples meet in {self._met.get(key(t), 'what moves them about')}"

    def exact(self, t: Tensor, size: int) -> bool:
        """Whether t chooses, along a dimension of this size, in each pass what it chooses here."""
        return self.fixed(t) and (size % self.n > 0 or key(t) not in self._uneven)

    def fixed(self, t: Tensor) -> bool:
        """Whether the next pass has the same numbers there."""
        place = key(t)
        return place in self._born and place not in self._loose and place not in self._shadows

    def read(self, given: list[Tensor], name: str) -> None:
        """Python reads these, by a call of this name, and may write over them, as by numpy."""
        if any(self.own(t) is not None for t in given):
            raise Untaken(f"Python reads numbers of the examples, by {name}")
        self._loose |= set(map(key, given))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            out = func(*args, **kwargs)
            self._follow(func, args, kwargs, out)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler in the first call, which takes longer than a batch."""
        return False

    def _part(self, t: Tensor) -> Tensor:
        """The shadow under a tensor; of complex ones with both parts as a last dimension."""
        flat, size = self._shadows[key(t)]
        if size != width(t):
            raise Untaken("a tensor is seen as of another dtype")
        shape = (2, *t.shape)
        if not t.is_complex():
            return flat.as_strided(shape, (flat.shape[1], *t.stride()), t.storage_offset())
        strides = (flat.shape[1], *(2 * stride for stride in t.stride()), 1)
        return flat.as_strided((*shape, 2), strides, 2 * t.storage_offset())

    def _hold(self, t: Tensor) -> None:
        self._born[key(t)] = t.untyped_storage()

    def _set(self, t: Tensor, own: Own, written: bool) -> None:
        """written: the rest of the storage stays as it was."""
        place = key(t)
        if place not in self._shadows or not written:
            if own is None:
                self._shadows.pop(place, None)
                return
            size = width(t)
            count = t.untyped_storage().nbytes() // size
            shadow = torch.zeros(2, count, dtype=torch.int8, device=t.device)
            self._shadows[place] = shadow, size
        part = self._part(t)
        if own is None:
            part.zero_()
            return
        part.copy_(own[..., None] if t.is_complex() else own)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = func.overloadpacket.__name__
        given = list(tensors((args, kwargs)))
        stores = {key(t) for t in given}
        made = [t for t in tensors(out) if key(t) not in stores]
        for t in made:
            self._hold(t)
        arguments = func._schema.arguments
        call = {a.name: a.default_value for a in arguments} | kwargs
        call |= dict(zip((a.name for a in arguments), args, strict=False))
        writes = func._schema.is_mutable
        written = [call[a.name] for a in arguments if a.alias_info and a.alias_info.is_write]
        targets = [*tensors(written), *made]
        sources = given[1:] if name in SHAPED else given
        if not all(map(self.fixed, sources)) or torch.Tag.nondeterministic_seeded in func.tags:
            self._loose |= {key(t) for t in targets}
        if name not in EVEN or any(key(t) in self._uneven for t in given):
            self._uneven |= {key(t) for t in targets}
        if all(self.own(t) is None for t in given):
            return
        if READS & set(func.tags) and not name.startswith("index"):
            raise Untaken(f"{name} reads numbers of the examples")
        if torch.Tag.inplace_view in func.tags or not targets:
            return
        reached = any(self.own(t) is not None for t in sources)
        if writes and reached and any(key(t) not in self._born for t in targets):
            raise Untaken(f"{name} writes examples' numbers into a tensor from before the pass")
        # What has other results than the tensor in which it works has no rule.
        rule = _joined if writes and (made or not name.endswith("_")) else _rule(func)
        own = {k: self.own(value) for k, value in call.items()}
        found = rule(Operation(self, func, call, own, targets))
        several = found if isinstance(found, list) else [found] * len(targets)
        for t, each in zip(targets, several, strict=True):
            self._set(t, self._fitted(each, t), writes)
            if each is not None and (each.sum(0) > self.n + 1).any():
                before = [self._met[key(other)] for other in sources if key(other) in self._met]
                self._met.setdefault(key(t), before[0] if before else name)

    def _fitted(self, own: Own, t: Tensor) -> Own:
        """Broadcast to the tensor; joined whole where the shapes do not fit."""
        if own is not None:
            lead = t.ndim + 1 - own.ndim
            sizes = zip(own.shape[1:], t.shape[max(lead, 0) :], strict=False)
            if lead < 0 or any(a not in (1, b) for a, b in sizes):
                own = whole([own])
        return None if own is None else _led(own, t.ndim + 1).expand(2, *t.shape)


class Operation(NamedTuple):
    """One of torch's operations as it ran.

    call: its arguments by name. own: the pairs of each. out: what it has made, or written.
    """

    track: Track
    func: Any
    call: dict[str, Any]
    own: dict[str, Own]
    out: list[Tensor]

    @property
    def name(self) -> str:
        return self.func.overloadpacket.__name__

    def of(self, *names: str) -> Own:
        """The pairs of these arguments, whole."""
        return whole(self.own.get(name) for name in names)

    def all(self) -> list[Own]:
        """Those of all tensors, in lists too."""
        return [self.track.own(t) for t in tensors(self.call)]


Rule = Callable[[Operation], Own | list[Own]]


@functools.cache
def _rule(func: Any) -> Rule:
    name = func.overloadpacket.__name__
    if func.namespace != "aten":
        return _joined
    if name in SHAPED:
        return _shaped
    # What is done in place has the rule of what is not.
    plain = name.removesuffix("_")
    overloads = [func]
    if plain != name:
        packet = getattr(torch.ops.aten, plain)
        overloads += [getattr(packet, overload) for overload in packet.overloads()]
    if any(torch.Tag.pointwise in overload.tags for overload in overloads):
        return _elementwise
    return RULES.get(plain, _joined)


def _joined(o: Operation) -> Own:
    return whole(o.all())


def _elementwise(o: Operation) -> Own:
    return meet(*o.all())


def _shaped(o: Operation) -> Own:
    return meet(*o.all()[1:])


def _copied(o: Operation) -> Own:
    return o.own["src"]


def _moved(o: Operation) -> Own:
    """The same operation on each half of the shadow; what it fills in is of none."""

    def half(value: Any, k: int) -> Any:
        if isinstance(value, Tensor):
            own = o.track.own(value)
            return torch.zeros_like(value, dtype=torch.int8) if own is None else own[k]
        return [half(part, k) for part in value] if isinstance(value, list | tuple) else value

    call = o.call | {"value": 0} if "value" in o.call else o.call
    halves = [o.func(**{name: half(value, k) for name, value in call.items()}) for k in (0, 1)]
    return torch.stack(halves)


def _reduced(o: Operation) -> list[Own]:
    kept = along(meet(*o.own.values()), o.call.get("dim"))
    size = 0 if kept is None else kept.numel() // 2
    # Of fewer numbers than results, as of another operation's overload, all meet.
    return [
        kept.reshape(2, *t.shape) if kept is not None and t.numel() == size else whole([kept])
        for t in o.out
    ]


def _scanned(o: Operation) -> Own:
    dim = o.call.get("dim")
    return meet(*(along(own, -1 if dim is None else dim) for own in o.own.values()))


def _scattered(o: Operation) -> Own:
    """``index`` may choose any place along ``dim``, of all lines or of the first ones of each."""
    x = o.call["self"]
    index = o.call["index"]
    dim = o.call["dim"] % max(x.ndim, 1)
    if o.name.startswith("index_add"):
        return meet(along(o.own["self"], dim), along(o.own["source"], dim), o.of("index"))
    lines = [slice(None) if d == dim else slice(size) for d, size in enumerate(index.shape)]

    def part(name: str) -> Own:
        own = o.own.get(name)
        return None if own is None else own[(slice(None), *lines)]

    if "gather" in o.name:
        return meet(along(part("self"), dim), o.own["index"])
    new = along(meet(part("src"), o.own["index"]), dim)
    if any(a != b for d, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if d != dim):
        new = whole([new])
    return meet(along(o.own["self"], dim), new)


def _product(o: Operation) -> Own:
    *rest, a, b = [name for name, value in o.call.items() if isinstance(value, Tensor)]
    vector = o.call[b].ndim == 1
    rows = o.own[a]
    columns = o.own[b]
    if rows is not None:
        rows = rows.amax(-1, keepdim=not vector)
    if columns is not None:
        columns = columns.amax(-1 if vector else -2, keepdim=True)
    return meet(rows, columns, *(o.own[name] for name in rest))


def _embedded(o: Operation) -> Own:
    indices = o.own["indices"]
    lines = None if indices is None else indices[..., None]
    return meet(lines, o.of("weight"))


def _batched(o: Operation) -> list[Own]:
    return _led_by(o.own, o.out, 1, "backward" in o.name)


def _attended(o: Operation) -> list[Own]:
    """Fused attention: of the first dimension each number is by itself, forward and backward."""
    # A mask of fewer dimensions has others first.
    ndim = o.out[0].ndim
    masks = [k for k, own in o.own.items() if k in MASKS and own is not None and own.ndim <= ndim]
    rest = {k: own for k, own in o.own.items() if k not in COUNTERS | set(masks)}
    shared = o.of(*masks)
    return [meet(own, shared) for own in _led_by(rest, o.out, 1)]


def _normed(o: Operation) -> list[Own]:
    count = o.call["input"].ndim - len(o.call["normalized_shape"])
    return _led_by(o.own, o.out, count, "backward" in o.name)


def _led_by(
    owns: dict[str, Own], out: list[Tensor], count: int, backward: bool = False
) -> list[Own]:
    """Along ``count`` leading dimensions each number is by itself, the rest meets.

    backward: of the first result alone, while the others are of weights.
    """
    leading = out[0].shape[:count]
    parts: list[Own] = []
    rest: list[Own] = []
    for name, own in owns.items():
        if own is None or name in SHARED or own.shape[1 : count + 1] != leading:
            rest.append(own)
        else:
            parts.append(own.reshape(*own.shape[: count + 1], -1).amax(-1))
    low = meet(*parts, whole(rest))
    results = []
    for i, t in enumerate(out):
        if low is None or low.ndim <= count or t.shape[:count] != leading or (backward and i):
            results.append(whole([low]))
        else:
            results.append(low.reshape(*low.shape, *[1] * (t.ndim - count)))
    return results


def _by_statistics(o: Operation) -> list[Own]:
    """Batch normalisation: of each channel, of dimension 1, where it makes its statistics.

    As an instance normalisation does, whose examples are channels of one.
    """
    ndim = o.call["input"].ndim
    own = meet(o.own["input"], o.own.get("grad_out"))
    others = len(o.out) - 1
    if not o.call.get("training", o.call.get("train")):
        rest = o.of(*(o.own.keys() - {"input", "grad_out"}))
        return [meet(own, rest), *[whole(o.own.values())] * others]
    for name in ("save_mean", "save_invstd"):
        saved = o.own.get(name)
        if saved is not None:
            own = meet(own, saved.reshape(2, 1, -1, *[1] * (ndim - 2)))
    channels = along(meet(own, o.of(*SHARED)), [d for d in range(ndim) if d != 1])
    if channels is None:
        return [None] * len(o.out)
    return [channels, *[channels.reshape(2, -1)] * others]


def _entropy(o: Operation) -> Own | list[Own]:
    dim = 2 if o.call["self"].ndim > 1 else 1
    target = o.own["target"]
    shared = o.of("weight")
    if "grad_output" in o.call:
        g = o.own["grad_output"]
        if g is not None and g.ndim > 1:
            g = g.unsqueeze(dim)
        lines = None if target is None else target.unsqueeze(dim)
        # Without a reduction the weights' total is not used.
        divisor = o.of("total_weight") if o.call["reduction"] else None
        return meet(g, lines, divisor, shared)
    every = whole(o.own.values())
    if o.call["reduction"]:
        return every
    x = along(o.own["self"], dim - 1)
    x = None if x is None else x.squeeze(dim)
    return [meet(x, target, shared), every]


def _indexed(o: Operation) -> Own:
    x = o.call["self"]
    if o.name == "index_select":
        indices = [None] * (o.call["dim"] % x.ndim) + [o.call["index"]]
    else:
        indices = list(o.call["indices"])
    used = [d for d, t in enumerate(indices) if t is not None]
    chosen = [d for d in used if not o.track.exact(indices[d], x.shape[d])]
    # A mask may be of several dimensions: which ones the others are of is not counted here.
    if chosen and any(indices[d].dtype in (torch.bool, torch.uint8) for d in used):
        raise Untaken("rows are picked by a mask")
    # The place in x of each number that is taken or put.
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    places = places[tuple(slice(None) if t is None else t for t in indices)]
    mine = meet(*(o.track.own(indices[d]) for d in used))
    if mine is not None:
        wide = max(indices[d].ndim for d in used)
        near = used == list(range(used[0], used[-1] + 1))
        after = x.ndim - used[-1] - 1 if near else x.ndim - len(used)
        mine = _led(mine, wide + 1)
        mine = mine.reshape(*mine.shape, *[1] * after)
    own = o.own["self"]
    if chosen:
        own = along(own, chosen)
    if own is not None:
        own = own.expand(2, *x.shape)
    if "put" not in o.name:
        if own is None:
            return mine
        taken = own.reshape(2, -1)[:, places.flatten()]
        return meet(taken.reshape(2, *places.shape), mine)
    new = meet(o.own["values"], mine)
    if new is None:
        return own
    new = _led(new, places.ndim + 1).expand(2, *places.shape).reshape(2, -1)
    put = new.new_zeros(2, x.numel())
    put.scatter_reduce_(1, places.flatten().expand(2, -1), new, "amax")
    put = put.reshape(2, *x.shape)
    return meet(own, along(put, chosen) if chosen else put)


NAMES: dict[Rule, list[str]] = {
    _copied: ["copy"],
    _embedded: ["embedding"],
    _elementwise: ELEMENTWISE,
    _moved: MOVED,
    _reduced: REDUCED,
    _scanned: SCANNED,
    _scattered: SCATTERED,
    _product: PRODUCTS,
    _batched: BATCHED,
    _attended: ATTENTION + [f"{name}_backward" for name in ATTENTION],
    _normed: NORMED,
    _by_statistics: STATISTICS,
    _entropy: ENTROPIES,
    _indexed: ["index", "index_put", "index_select"],
}
RULES = {name: rule for rule, names in NAMES.items() for name in names}
