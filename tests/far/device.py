"""A device that is not there: tensors that say they live on ``far:0`` and compute on the CPU.

What CUDA refuses is refused here: operands on two devices, ``.numpy()`` of device data, a generator
of the other side. Every operation passes one function, so a call's synchronisations can be counted
without a GPU. Importing this changes the whole process (a backend is registered, a kernel is
wrapped): only children of the tests do.

A synchronisation is a number that the host reads, a copy to or from the host (pageable memory:
torch waits for both), or an operation whose result's size, or whose error, the host waits for. No
streams, no speed, no numerics of CUDA are here. torch's interface for this is experimental.
"""

import contextlib
import dataclasses
import functools
from typing import ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

# until ``register``
DEVICE = torch.device("cpu")
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
TOGETHER = {
    "cat",
    "stack",
    "mm",
    "bmm",
    "addmm",
    "dot",
    "mv",
    "scatter",
    "gather",
    "index_add",
    "index_select",
}
READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim",
    "unique_consecutive", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq", "_linalg_eigvals",
    "linalg_eig", "_assert_scalar",
}  # fmt: skip
# the least and the largest entry are read
TWICE = {"bincount"}


class Counts:
    """Of one call: synchronisations, and operations on the device that are more than a view."""

    syncs = 0
    launches = 0

    def sync(self, times=1):
        self.syncs += times


COUNTS = Counts()


class Far(torch.Tensor):
    """One that says it is there. inner: its numbers."""

    @staticmethod
    def __new__(cls, inner):
        found = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        found.inner = inner
        return found

    def __repr__(self, **_):
        return f"Far({self.inner})"

    def tolist(self):
        COUNTS.sync()
        return self.inner.tolist()

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("can't convert far:0 to numpy; use Tensor.cpu() first")
        COUNTS.sync()
        return self.inner.detach().numpy()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func,
        types,
        args=(),
        kwargs=None,
    ):
        return run(func, args, kwargs or {})


class Mode(TorchDispatchMode):
    """Catches what makes tensors: factories with device= there."""

    def __torch_dispatch__(
        self,
        func,
        types,
        args=(),
        kwargs=None,
    ):
        return run(func, args, kwargs or {})


def is_far(device):
    return device is not None and torch.device(device).type == "far"


def there(generator):
    """Whether it was made by ``generator``: the dispatcher hands on a new Python object."""
    return generator._cdata in FarGenerator.known


def refuse_mixing(func, flat, far, target):
    near = [t for t in flat if isinstance(t, torch.Tensor) and not isinstance(t, Far)]
    name = func.overloadpacket.__name__
    for source in flat:
        if isinstance(source, torch.Generator) and there(source) != bool(far or target):
            raise RuntimeError(f"Expected a generator of the tensors' device: {func}")
    if not far or func in COPIES:
        return
    if name in INDEXED:
        if not isinstance(flat[0], Far):
            raise RuntimeError(f"indices should be on the indexed tensor's device (cpu): {func}")
        if name != "index" and not isinstance(flat[-1], Far):
            near = [t for t in near if t.dim()]
            if near and near[-1] is flat[-1]:
                raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
        for _ in near:
            COUNTS.sync()
        return
    if any(t.dim() for t in near) or (near and (name in TOGETHER or not func._schema.arguments)):
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {func} mixes far:0 and cpu"
        )
    if near and name.endswith("_") and not isinstance(flat[0], Far):
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {func} writes far:0 into cpu"
        )


def count(func, flat, target, out, waits_not, known):
    """known: how long the result of repeat_interleave is, None: it has to be read."""
    name = func.overloadpacket.__name__
    if func in COPIES:
        if func is aten._to_copy.default:
            crossing = isinstance(out, torch.Tensor) and isinstance(flat[0], Far) != target
        else:
            crossing = isinstance(flat[0], Far) != isinstance(flat[1], Far)
        if crossing and not (waits_not and any(hasattr(t, "said_to_be_pinned") for t in flat)):
            COUNTS.sync()
    elif name in READS or (name == "repeat_interleave" and known is None):
        COUNTS.sync()
    elif name in TWICE:
        COUNTS.sync(2)
    elif name in INDEXED and any(
        isinstance(t, Far) and t.dtype in (torch.bool, torch.uint8) for t in flat[1:]
    ):
        one = name != "index" and isinstance(flat[-1], torch.Tensor) and flat[-1].dim() == 0
        if not (one and sum(isinstance(t, torch.Tensor) for t in flat) == 3):  # masked_fill
            COUNTS.sync()


def numbers(there):
    """A tensor's own; zeros that torch only marks as such are made: inside of an operation there
    torch passes over its marks.
    """
    inner = there.inner
    return torch.zeros(inner.shape, dtype=inner.dtype) if inner._is_zerotensor() else inner


def run(func, args, kwargs):
    """One operation: refused, or done on the CPU and said to be there."""
    leaves = tree_flatten((args, kwargs))[0]
    flat = [t for t in leaves if isinstance(t, torch.Tensor | torch.Generator | int | float)]
    tensors = [t for t in flat if isinstance(t, torch.Tensor | torch.Generator)]
    far = [t for t in tensors if isinstance(t, Far)]
    device = kwargs.get("device")
    target = is_far(device)
    if not far and not target:
        if any(isinstance(t, torch.Generator) and there(t) for t in tensors):
            raise RuntimeError(f"Expected a generator of the tensors' device: {func}")
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        out = func(*args, **{**kwargs, "pin_memory": False})
        out.said_to_be_pinned = True
        return out
    refuse_mixing(func, tensors, far, target)
    inner = dict(kwargs)
    if target:
        inner["device"] = torch.device("cpu")
    a, k = tree_map_only(Far, numbers, (args, inner))
    # the other mark: a conjugate
    out = torch.conj_physical(*a) if func is aten._conj.default else func(*a, **k)
    to_far = target or (bool(far) and device is None)
    waits_not = kwargs.get("non_blocking") or (
        func is aten.copy_.default and len(args) > 2 and args[2]
    )
    count(
        func,
        tensors or [None],
        target if device is not None else isinstance(tensors[0], Far),
        out,
        waits_not,
        kwargs.get("output_size"),
    )
    seen = [one.alias_info for one in func._schema.returns]
    if to_far and not any(alias and not alias.is_write for alias in seen):
        COUNTS.launches += 1
    if func._schema.is_mutable:
        if func is aten.copy_.default:
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        if func.overloadpacket.__name__.endswith("_"):
            if torch.Tag.inplace_view in func.tags:
                with no_dispatch():
                    # the shape that it says
                    func(*args, **kwargs)
            return args[0]
        if func._schema.returns == []:
            return None
    return (
        tree_map_only(torch.Tensor, lambda t: t if isinstance(t, Far) else Far(t), out)
        if to_far
        else out
    )


class FarGenerator(torch.Generator):
    """Says that it is there."""

    # by address; kept, so that no other takes it
    known: ClassVar = {}

    @property
    def device(self):
        return DEVICE


class Made(type):
    def __instancecheck__(cls, value):
        return isinstance(value, FarGenerator.__base__)

    def __call__(cls, device="cpu"):
        return generator() if is_far(device) else FarGenerator.__base__(device)


class Generators(metaclass=Made):
    """What torch.Generator is replaced by: one that can be made there."""


def generator(seed=0):
    found = FarGenerator()
    FarGenerator.known[found._cdata] = found
    found.manual_seed(seed)
    return found


@functools.cache
def register(fused):
    """Makes the device ``far``. fused: rooms and counts take what CUDA has fused kernels for as
    such.

    To be called before a room of torchdp is imported.
    """
    global DEVICE
    module = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    backend_registration._setup_privateuseone_for_python_backend("far", module)
    DEVICE = torch.device("far", 0)
    # timers wait for a device, and nothing is ever left to wait for
    torch.accelerator.synchronize = lambda *which: None
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    from torchdp.kernels import chacha, dispatch

    chacha.keystream = quick(chacha.keystream)

    if fused:
        dispatch.keyed = is_far
    torch.Generator = Generators
    return library


def quick(keystream):
    """The same words from a library, in less time."""

    @functools.wraps(keystream)
    def one(key, *args, **kwargs):
        if isinstance(key, Far):
            return Far(keystream(key.inner, *args, **kwargs))
        return keystream(key, *args, **kwargs)

    return one


def _empty_strided(
    size,
    stride,
    dtype=None,
    layout=None,
    device=None,
    pin_memory=None,
):
    return Far(torch.empty_strided(size, stride, dtype=dtype))


def _empty(
    size,
    dtype=None,
    layout=None,
    device=None,
    pin_memory=None,
    memory_format=None,
):
    return Far(torch.empty(size, dtype=dtype))


def _copy_from(self, dst, non_blocking=False):
    one = self.inner if isinstance(self, Far) else self
    two = dst.inner if isinstance(dst, Far) else dst
    COUNTS.sync()
    two.copy_(one)
    return dst


@contextlib.contextmanager
def counted():
    """Counts what runs inside, with factories caught."""
    global COUNTS
    before = COUNTS
    COUNTS = Counts()
    try:
        with Mode():
            yield COUNTS
    finally:
        COUNTS = before


@contextlib.contextmanager
def dtype(kind):
    """torch's default dtype inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def moved(value, device=None):
    """The same with every tensor there: dataclasses are made anew, so that their own checks run
    there too.
    """
    device = DEVICE if device is None else device
    again = functools.partial(moved, device=device)
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        new = {name: again(field) for name, field in fields.items()}
        return (
            dataclasses.replace(value, **new)
            if any(new[n] is not fields[n] for n in new)
            else value
        )
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        new = tuple(map(again, value))
        return new if any(a is not b for a, b in zip(new, value, strict=True)) else value
    if isinstance(value, list):
        return [again(each) for each in value]
    if isinstance(value, dict):
        return {name: again(each) for name, each in value.items()}
    return value
