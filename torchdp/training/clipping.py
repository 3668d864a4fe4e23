"""Sums of clipped per-example gradients."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.training.apart import by_loop, by_vmap
from torchdp.training.batched import by_factors
from torchdp.training.factors import Rows
from torchdp.training.per_example import (
    DRAWS,
    FEW,
    REMEMBERS,
    Both,
    Gradients,
    Inputs,
    Known,
    Passes,
    flat,
    pick,
)
from torchdp.training.record import MEANS, MIXES, Untaken, eager
from torchdp.training.sharded import gathered, like, reshard
from torchdp.training.sums import Sums, clipped

LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others
TABLES = (nn.Embedding, nn.EmbeddingBag)
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
ROUTES = ("factors", "vmap", "loop")
CHECKED = "examples are apart as far as was checked: each new program of operations, by three examples alone"
APART = "each example alone, by construction"
MEMORY = 2**28


class Clipper:
    """Sums of clipped gradients of one module and loss, as :func:`clip_and_sum`, batch after batch.

    What the first batch of its shapes has shown is kept: the route, and the programs of operations that were checked.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        routes: Sequence[str] = ROUTES,
        unused: Sequence[str] = (),
    ) -> None:
        checks.function("loss", loss)
        self.module, self.loss = checks.instance("module", module, nn.Module), loss
        self._both = Both(module, loss)
        self.routes = tuple(routes)
        if not routes or isinstance(routes, str) or [name for name in ROUTES if name in routes] != list(routes):
            raise ValueError(f"routes must be some of {ROUTES}, in this order, not {routes!r}")
        self._unused = _unused(self.module, unused)
        self._known: dict[object, Known] = {}
        self._last: Known | None = None

    @property
    def route(self) -> str:
        """The route of the last call, what it promises, and why earlier ones were not taken."""
        if self._last is None:
            return "none yet"
        name = self._last.routes[0]
        return "; ".join([f"{name}: {CHECKED if name == 'factors' else APART}", *self._last.reasons])

    def __call__(
        self,
        inputs: Inputs,
        targets: Tensor,
        bound: float,
        *,
        at_once: int = 256,
        memory: int = MEMORY,
        dropout: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sum, and the mean of the examples' losses, which is not private. Raises TypeError, ValueError."""
        bound, memory = _bound(bound), checks.integer("memory", memory, 1)
        at_once = checks.integer("at_once", at_once, 1)
        inputs = _examples(self.module, inputs, targets)
        parameters = _trainable(self.module, self.loss, dropout is not None)
        seed = None if dropout is None else int(Simulated(dropout).integers(()))
        with gathered(self.module) as whole, torch.enable_grad(), eager(), _masks(seed, targets.device):
            parameters = {name: whole.get(name, p) for name, p in parameters.items()}
            shapes = ((name, value.shape[1:], value.dtype) for name, value in _named(inputs, targets).items())
            key = (*shapes, *((name, p.shape) for name, p in parameters.items()))
            known, fresh = self._known.get(key, Known(list(self.routes))), key not in self._known
            passes = Passes(self._both, parameters, whole, seed is not None, known)
            first, wrong = (pick(inputs, slice(1)), targets[:1]), []
            fresh = fresh and len(targets) > 0
            if fresh:
                with _masks(seed or 0, targets.device):
                    before, reached = passes.value(*first)
            sums, lost = Sums(), []
            for x, y in _pieces(inputs, targets, at_once, memory, known, fresh):
                for found in taken(passes, x, y):
                    sums.add(found.forms, bound)
                    if fresh:
                        rest = {name: form for name, form in found.forms.items() if name not in reached}
                        reached += [name for name, form in rest.items() if bool(form.norms().any())]
                    lost.append(found.losses)
                    wrong.append((found.mixes, MEANS))
            if fresh:
                with _masks(seed or 0, targets.device):
                    after = passes.value(*first)[0]
                other = (after - before).abs() > 1e-4 * (after.abs() + before.abs())
                wrong.insert(
                    0, (other, f"{REMEMBERS}the first one alone had another loss after the call than before")
                )
            if fresh and self._last is None:
                _all_reached([name for name in parameters if name not in {*reached, *self._unused}])
        total = _unless(sums.flat(parameters), wrong)
        self.balance = _unless(sums.balance, wrong)  # of this call, see Sums
        if len(targets):
            self._known[key] = self._last = known
        return total, torch.cat(lost).mean() if lost else torch.tensor(math.nan, dtype=torch.float32)


def taken(passes: Passes, x: Inputs, y: Tensor) -> Iterator[Gradients]:
    """Gradients of some examples by the first route that serves, all at once or one at a time. Raises ValueError."""
    while True:
        try:
            if passes.known.routes[0] == "loop":
                yield from by_loop(passes, x, y)
            else:
                yield (by_factors if passes.known.routes[0] == "factors" else by_vmap)(passes, x, y)
            return
        except Untaken as reason:
            passes.known.next(str(reason))


def clip_and_sum(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Inputs,
    targets: Tensor,
    bound: float,
    *,
    at_once: int = 256,
    memory: int = MEMORY,
    dropout: torch.Generator | None = None,
    routes: Sequence[str] = ROUTES,
    unused: Sequence[str] = (),
) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||), g_i the gradient of loss(module(x_i), y_i) in all trainable parameters.

    Parameters that the loss reaches (a head, a penalty) are among them. The loss of several examples must be the mean,
    the sum or the list of their own losses, which each batch is held to: a mean that class weights or counts of tokens
    divide is refused, since it is not what the examples' own gradients add up to. Where the loss is in the module's own
    call (labels), each example's is the mean over what that example has itself.

    Args:
        module: called on batches.
        loss: likewise.
        inputs: (n, ...), n >= 0; a tensor, or several by name, module(**inputs).
        targets: (n, ...).
        bound: the longest that an example's gradient may be.
        at_once: examples whose gradients are in memory together.
        memory: bytes that their factors and gradients may take, one example's at least; what a pass without privacy
            takes comes on top.
        dropout: draws masks, for each example its own; without it dropout in training mode is refused.
        routes: those that may be taken, of which the first one that serves is, in this order. "factors": one pass of
            the whole batch; of a layer's gradients sum_t b_t a_t^T only the inputs a_t and the gradients b_t in its
            outputs are made, where these are less. "vmap": each example's whole gradient. "loop": one example after
            another, also of recurrent cells and Python that reads numbers.
        unused: names of parameters, or of modules that hold them, that no example need reach: an expert that is chosen
            by few examples. Any other that none reaches is refused: in training it would be moved by noise alone.

    Returns one flat vector in the order of ``module.parameters()``, those that require no gradient left out;
    :func:`set_gradients` puts it back. A gradient counts as 0 that is not finite, or so long that bound / ||g_i|| is no
    normal number (2^126 bounds in float32). Of a module that ``fully_shard`` has cut, every process calls this, for
    the sum of its own examples, and has all parameters for the time of the call.
    The dtype is the parameters', at least float32. Raises TypeError, ValueError: also on batch normalisation in
    training mode; where a call sets or writes a registered buffer, which is named, as is a parameter that no example
    reaches; where the first example alone has another loss after the call than before. On a GPU, which the host does
    not wait for, the sum is NaN where a comparison fails.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum, where
    each example's gradient is a function of that example, and module and loss remember none: what Python code keeps
    between calls is not followed. By "vmap" and "loop" it is one by construction. By "factors" it is *checked*: what
    each new program of operations finds for some examples is held to these examples alone by plain autograd, in float32
    at least, before its sum is used, and again at its 16th, 32nd, 64th use and so on. Python reads no data there
    (bool() of it is always False), no parameter's use is left out, and a result without a dimension that counts
    examples goes to another route. A module that mixes examples where the checked ones do not show it is not seen:
    relu(x.roll(1, 0) - 51.7) is 0 on every batch of smaller numbers. Neither is what goes past torch's functions: C
    extensions, what custom functions or hooks of saved tensors do. Take
    routes=("vmap", "loop") for a module whose author is not trusted.
    Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Algorithm 1; factors: Lee, Kifer (2021); Li,
    Tramer, Liang, Hashimoto (2022); Bu, Wang, Zha, Karypis (2023).
    """
    sums = Clipper(module, loss, routes=routes, unused=unused)
    return sums(inputs, targets, bound, at_once=at_once, memory=memory, dropout=dropout)[0]


def _unless(total: Tensor, wrong: Sequence[tuple[Tensor | None, str]]) -> Tensor:
    """``total`` where none of these is wrong: raises ValueError, and on another device the sum is NaN."""
    for flag, message in wrong:
        if flag is not None and flag.device.type == "cpu" and flag.any():
            raise ValueError(message)
        total = total if flag is None else torch.where(flag.to(total.device), torch.nan, total)
    return total


def clipped_sum(gradients: Sequence[Tensor], bound: float) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||) of gradients that were made elsewhere, flat, at least float32: (size,).

    gradients: for each parameter those of the examples, (n, *shape), n >= 0; g_i is all of example i's together: of
    ``torch.func.vmap(grad(...))``, or Opacus's ``grad_sample``. What counts as 0: as there. Raises TypeError,
    ValueError.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum; where
    each g_i is a function of its own example.
    Source: as :func:`clip_and_sum`.
    """
    return clipped_rows(gradients, bound)[0]


def clipped_rows(gradients: Sequence[Tensor], bound: float) -> tuple[Tensor, Tensor]:
    """As :func:`clipped_sum`, and a sum of signs: 1 for an example within the bound, -1 for one that is not."""
    bound, given = _bound(bound), checks.several("gradients", gradients, Tensor)
    if any(g.is_complex() for g in given):
        raise TypeError("gradients must be real; split complex ones by torch.view_as_real")
    n = {len(checks.dense("gradients", g)) if g.ndim else -1 for g in given}
    if len(n) > 1 or min(n) < 0:
        raise ValueError(f"gradients must hold equally many examples' each, not {sorted(n)}")
    rows = [Rows(flat(g)) for g in given]
    dtype = rows[0].rows.dtype
    parts, balance = clipped(rows, bound)
    return torch.cat([part.to(dtype) for part in parts]), balance


def _bound(bound: float) -> float:
    if checks.positive("bound", bound) < LEAST:
        raise ValueError(f"bound must be at least {LEAST:.1e}, not {bound!r}: float32 has no digits there")
    return float(bound)


def _pieces(
    inputs: Inputs, targets: Tensor, at_once: int, memory: int, known: Known, fresh: bool
) -> Iterator[tuple[Inputs, Tensor]]:
    """Some examples at a time: few at first, by which it is known what an example takes; none for none."""
    start = 0
    while start < len(targets):
        step = min(at_once, FEW) if fresh and not start else max(1, min(at_once, memory // max(known.each, 1)))
        part = slice(start, start + step)
        yield pick(inputs, part), targets[part]
        start += step


@contextmanager
def _masks(seed: int | None, device: torch.device) -> Iterator[None]:
    """torch's own generators start from ``seed``, and are put back; for None they are left alone."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _trainable(module: nn.Module, loss: object, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own. Raises."""
    losses = list(loss.modules()) if isinstance(loss, nn.Module) else []
    for part in [*module.modules(), *losses]:
        if part.training and isinstance(part, MIXING):
            raise ValueError(MIXES)
        if isinstance(part, PARALLEL):
            raise ValueError(
                f"module must not be wrapped in {type(part).__name__}; pass what it wraps, its .module: a run adds up "
                "over a group's processes itself"
            )
        if isinstance(part, TABLES) and (part.max_norm is not None or part.sparse):
            raise ValueError(
                "module has an embedding with max_norm, which writes users' rows anew in each call, or with sparse "
                "gradients; make it without either"
            )
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p
        drops = drops or (isinstance(part, nn.RNNBase) and part.dropout)
        if part.training and drops and not masks:
            raise ValueError(DRAWS)
    parameters: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError("module must have real parameters; split complex ones by torch.view_as_real")
    if not parameters:
        raise ValueError("module must have a parameter that requires a gradient")
    own = {id(p) for p in module.parameters()}
    for name, p in loss.named_parameters() if isinstance(loss, nn.Module) else ():
        if p.requires_grad and id(p) not in own:
            raise ValueError(
                f"loss has a parameter of its own, {name}, which would never be trained: make the loss a part of "
                "module, as module.loss = loss, or call loss.requires_grad_(False)"
            )
    return parameters


def _unused(module: nn.Module, unused: Sequence[str]) -> list[str]:
    """The parameters that have one of these names, or are in a module that has. Raises TypeError, ValueError."""
    found = []
    for name in checks.each_of("unused", unused, str):
        own = [place for place, _ in module.named_parameters() if f"{place}.".startswith(f"{name}.")]
        if not own:
            raise ValueError(f"unused must name parameters of module, or modules that hold them, not {name!r}")
        found += own
    return found


def _all_reached(missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - 3} more" * (len(missing) > 3)
        raise ValueError(
            f"module has parameters that no example's loss reaches, {', '.join(missing[:3])}{more}, which noise alone "
            "would move: call requires_grad_(False) on them, or name them in unused= where later examples reach them"
        )


def _named(inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    return {"targets": targets, **({"inputs": inputs} if isinstance(inputs, Tensor) else inputs)}


def _examples(module: nn.Module, inputs: Inputs, targets: Tensor) -> Inputs:
    """The inputs without gradients. Raises where these are not equally many examples."""
    if isinstance(inputs, tuple | list):
        names = list(inspect.signature(module.forward).parameters)[: len(inputs)]
        raise TypeError(
            f"inputs must be a Tensor, or a dict of several by forward's names, not {type(inputs).__name__}: pass "
            f"dict({', '.join(f'{name}=...' for name in names)})"
        )
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    for name, value in _named(inputs, targets).items():
        if not checks.dense(name, value).ndim:
            raise ValueError(f"{name} must have one entry for each example, not shape ()")
        if len(value) != len(targets):
            raise ValueError(f"{name} and targets must be equally many, not {len(value)} and {len(targets)}")
    return (
        inputs.detach() if isinstance(inputs, Tensor) else {name: value.detach() for name, value in inputs.items()}
    )


def set_gradients(module: nn.Module, gradient: Tensor) -> None:
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer. Raises ValueError.

    A parameter that is a shard (``fully_shard``) gets its part of it, as a shard.
    """
    reshard(checks.instance("module", module, nn.Module))
    parameters = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    if checks.dense("gradient", gradient).shape != (size,):
        raise ValueError(f"gradient must be a flat tensor of shape ({size},)")
    for p, part in zip(parameters, gradient.detach().split([p.numel() for p in parameters]), strict=True):
        p.grad = like(part.view(p.shape).to(p.device, p.dtype), p)
