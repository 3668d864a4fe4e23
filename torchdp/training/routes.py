"""Each example's own gradients, by three routes.

In one pass of the batch, uses of parameters recorded, and each new program checked; on the other
two each example alone, as torch runs it.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torchdp.training.accepted import MEETS, SYSTEM, Beside, OwnRules, factors, meet, prime
from torchdp.training.factors import Form, Rows, joined
from torchdp.training.per_example import (
    DRAWS,
    Gradients,
    Inputs,
    Passes,
    due,
    flat,
    mapped,
    pick,
    short,
)
from torchdp.training.record import Inside, Record, Refused, Untaken
from torchdp.training.rules import RULES


def by_factors(passes: Passes, x: Inputs, y: Tensor) -> Gradients:
    """All examples at once; what a new program of operations finds is checked against examples
    alone before its use.

    And again at its 16th, 32nd, 64th use and so on: parameters that were 0 at first may hide what
    they multiply.
    """
    found, record = recorded(passes, x, y)
    program, uses = hash(tuple(record.program)), passes.known.programs
    times = uses.get(program, 0)
    looked = due(times)
    if looked and passes.known.calls and record.n > 1:
        met = meet(passes, x, record.n)
        if met is not None and met.any():
            raise ValueError(MEETS)
    if not looked or _checked(passes, x, y, found, record):
        uses[program] = times + 1
    return found


def _checked(passes: Passes, x: Inputs, y: Tensor, found: Gradients, record: Record) -> bool:
    """Whether some examples' gradients are those of the examples alone; False where none has a
    gradient.

    Numbers of half precision are too coarse for that: the same program is run in float32; and
    without dropout, which is of each number by itself. Raises Untaken where they differ.
    """
    norms = (
        torch.stack([form.norms() for form in found.forms.values()]).norm(dim=0)
        if found.forms
        else y[:0]
    )
    places = (norms.isfinite() & (norms > 0)).nonzero()[:, 0].tolist()
    if not places:
        return False
    alone, program = passes, record.functions()
    if passes.seeded or passes.halves(x):
        alone, x, y = passes.widened(x, y)
        with passes.plainly():
            found, record = recorded(alone, x, y)
        if record.functions() != program:
            raise Untaken("in float32, or without dropout, it is another program")
    if record.coarsest > torch.finfo(torch.float32).eps:
        raise Untaken("it computes in half precision, which is too coarse to be checked")
    tolerance = max(1e-9, 2.0**10 * record.coarsest)
    some = 12 if record.asked else 3  # rows may answer otherwise than all batches do
    rows = SYSTEM.sample(places, min(some, len(places)))
    wanted = {i: _one_alone(alone, x, y, i) for i in rows}
    _hold(found, list(wanted.items()), tolerance)
    if record.n > 1:
        beside, other = _foreign(alone, x, y, rows[: min(3, record.n - 1)], record)
        _hold(other, [(place, wanted[beside.sources[place]]) for place in beside.kept], tolerance)
    return True


def _one_alone(passes: Passes, x: Inputs, y: Tensor, i: int) -> dict[str, Tensor]:
    """The gradient of one example by plain autograd, in each parameter (1, size)."""
    cudnn = torch.backends.cudnn  # convolutions of a GPU without short products
    part = slice(i, i + 1)
    with passes.plainly(), cudnn.flags(enabled=cudnn.enabled, allow_tf32=False):
        total = passes.plain(pick(x, part), y[part])[0].sum()
        g = torch.autograd.grad(total, list(passes.leaves.values()), materialize_grads=True)
    return {name: flat(each[None]) for name, each in zip(passes.leaves, g, strict=True)}


def _foreign(
    passes: Passes, x: Inputs, y: Tensor, rows: list[int], record: Record
) -> tuple[Beside, Gradients]:
    """What a pass finds of a few examples beside foreign ones. Raises Untaken where it is another
    program.

    Their number divides no size that the pass has made: a result of which one dimension is no
    multiple of it has lost the batch's, where an accident of sizes hides it else.
    """
    reason = Untaken("beside other examples it is another program")
    # a loop over examples has another program for each number
    for n in (prime(record.n, record.sizes), record.n):
        for factor in factors(y.device):
            beside = Beside.drawn(rows, n)
            try:
                with passes.plainly():
                    found, again = recorded(passes, beside.batch(x, factor), y[beside.sources])
            except Untaken as error:
                reason = error
                continue
            if again.functions() == record.functions():
                return beside, found
            break
        else:
            raise reason
    raise reason


def _hold(found: Gradients, wanted: list[tuple[int, dict[str, Tensor]]], tolerance: float) -> None:
    """Raises Untaken where the gradients at a place are not those that are wanted there."""
    for place, want in wanted:
        size = float(torch.stack([each.double().norm() for each in want.values()]).norm())
        for name, each in want.items():
            form = found.forms.get(name)
            with torch.autocast(each.device.type, enabled=False):
                mine = 0.0 if form is None else form.pick(slice(place, place + 1)).whole()
                off = float((each - mine).double().norm())
            if not off <= tolerance * size:
                raise Untaken(
                    f"{name} has another gradient than for an example alone, by {off:.1g} of {size:.1g}"
                )


def recorded(passes: Passes, x: Inputs, y: Tensor) -> tuple[Gradients, Record]:
    """What a pass of the batch finds, unchecked, and its record. Raises Untaken."""
    known, n = passes.known, len(y)
    record = Record(passes.leaves, n, RULES, known.inside)
    try:
        with passes.unset():
            return _pass(passes, record, x, y), record
    except Inside:
        if known.inside:
            raise
        known.inside = True
        return recorded(passes, x, y)
    except (Refused, torch.OutOfMemoryError):
        raise
    # of whatever kind: the next route shows whether it is the module's own
    except Exception as error:
        raise Untaken(short(error)) from error


def _pass(passes: Passes, record: Record, x: Inputs, y: Tensor) -> Gradients:
    labels = record.data(y) if record.inside else None
    total, output = passes.on_copies(mapped(record.data, x), labels, record)
    record.finished()
    leaves, spec = tree_flatten(output)
    live = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
    lost, down, rows, mixes = _losses(passes, record, total, leaves, spec, live, y)
    with torch.autocast(y.device.type, enabled=False):
        forms = _forms(passes, record, down, rows)
    return Gradients(forms, lost, mixes)


def _forms(
    passes: Passes, record: Record, down: list[tuple[Tensor, Tensor]], rows: dict[str, Tensor]
) -> dict[str, Form]:
    """What each parameter's gradients are. Raises Untaken where one is used in a way that has no
    rule.
    """
    leaves, claims = passes.leaves, record.claims
    places = [*(claim.at for claim in claims), *leaves.values()]
    live, gradients = zip(*down, strict=True)
    found = torch.autograd.grad(live, places, gradients, allow_unused=True)
    for name, g in zip(leaves, found[len(claims) :], strict=True):
        if g is not None:
            raise Untaken(f"{name} is used in a way that has no rule")
    uses: dict[int, tuple[Tensor, list[Form]]] = {}
    for claim, g in zip(claims, found, strict=False):
        if g is not None:
            uses.setdefault(id(claim.source), (claim.source, []))[1].append(claim.form(g))
    own = {id(p): name for name, p in leaves.items()}
    forms: dict[str, list[Form]] = {name: [Rows(flat(g))] for name, g in rows.items()}
    for key, (source, parts) in uses.items():
        if key in own:
            forms.setdefault(own[key], []).extend(parts)
            continue
        derived = _derived(source, [*leaves.values()], joined(parts).whole())
        for name, part in zip(leaves, derived, strict=True):
            if part is not None:
                forms.setdefault(name, []).append(Rows(flat(part)))
    each = sum(g.numel() * g.element_size() for g in found if g is not None)
    joint = {name: joined(parts) for name, parts in forms.items()}
    passes.known.each = (each + sum(form.bytes for form in joint.values())) // record.n
    return joint


def _derived(source: Tensor, parameters: list[Tensor], rows: Tensor) -> list[Tensor | None]:
    """Gradients in the parameters that ``source`` is made of, of those in itself, (n, size)."""
    cotangents = rows.reshape(-1, *source.shape).to(source.dtype)
    options = {"allow_unused": True, "retain_graph": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(
            torch.autograd.grad(source, parameters, cotangents, is_grads_batched=True, **options)
        )


def _losses(
    passes: Passes,
    record: Record,
    total: Tensor,
    leaves: list[Any],
    spec: TreeSpec,
    live: list[Tensor],
    y: Tensor,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], dict[str, Tensor], Tensor | None]:
    """Each example's loss; tensors and its gradients in them, and in parameters that it reaches;
    whether losses mix.
    """
    n, known = len(y), passes.known
    if record.inside:
        if not record.reduced or total.ndim or not total.requires_grad:
            raise Untaken("the loss inside of the module is no mean that is known")
        return total.detach().expand(n) / n, [(total, torch.ones_like(total))], {}, None
    rows = [t for t in leaves if isinstance(t, Tensor)]
    if not live or any(not t.ndim or len(t) != n for t in rows):
        raise Untaken("what the module returns has no row for each example")
    lost = closed(passes.both.loss, rows[0], y) if len(leaves) == len(live) == 1 else None
    if lost is not None:
        return lost.detach(), [(lost, torch.ones_like(lost))], {}, None
    places = [i for i, t in enumerate(leaves) if any(t is each for each in live)]
    rest = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and i not in places]

    def one(own: Any, outs: list[Tensor], others: list[Tensor], y: Tensor) -> Any:
        full = list(leaves)
        for i, t in zip(places + rest, [*outs, *others], strict=True):
            full[i] = t[None]
        total = passes.call(own, None, y[None], tree_unflatten(full, spec))[0].sum()
        return total, total

    outs, others = [leaves[i].detach() for i in places], [leaves[i].detach() for i in rest]
    if known.reached is None:
        known.reached = passes.captured(
            one(passes.own, [t[0] for t in outs], [t[0] for t in others], y[0])[0]
        )
    own = {name: passes.leaves[name].detach() for name in known.reached}
    each = vmap(
        grad(one, argnums=(0, 1), has_aux=True), (None, 0, 0, 0), randomness=passes.randomness
    )
    (mine, down), lost = each(own, outs, others, y)
    if passes.captured(lost):
        raise Untaken("the loss holds parameters by themselves, or others than before")
    lost = lost.detach()
    mixes = passes.mixes(lost, rows, leaves, spec, y) if n > 1 else None
    return lost, list(zip(live, down, strict=True)), mine, mixes


def closed(loss: Any, z: Tensor, y: Tensor) -> Tensor | None:
    """Each example's loss of rows (n, classes) or (n, ...), where it is torch's mean of cross
    entropies or squares.
    """
    if loss is F.mse_loss or (type(loss) is nn.MSELoss and loss.reduction == "mean"):
        if z.shape != y.shape:
            return None
        return F.mse_loss(z, y, reduction="none").reshape(len(y), -1).mean(1)
    plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.reduction == "mean"
    if z.ndim != 2 or not ((plain and loss.ignore_index < 0) or loss is F.cross_entropy):
        return None
    smoothing = loss.label_smoothing if plain else 0.0
    return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)


def by_vmap(passes: Passes, x: Inputs, y: Tensor) -> Gradients:
    """All examples at once, each alone under vmap, where no custom function has a rule of its
    own.
    """
    if any(isinstance(part, nn.RNNBase) for part in passes.both.modules()):
        raise Untaken("a recurrent layer has weights that nothing can stand in for")
    structure: list[Any] = []

    def one(known: dict[str, Tensor], x: Inputs, y: Tensor) -> Any:
        total, output = passes.call(known, mapped(lambda value: value[None], x), y[None])
        leaves, spec = tree_flatten(output)
        structure[:] = [leaves, spec]
        return total.sum(), (total.sum(), [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    constants = {name: p.detach() for name, p in passes.leaves.items()}
    try:
        each = vmap(grad(one, has_aux=True), (None, 0, 0), randomness=passes.randomness)
        with OwnRules(), passes.unset():
            rows, (lost, tensors) = each(constants, x, y)
    except (Refused, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of whatever kind, as torch.cond's KeyError under a transform
        if "randomness error mode" in str(error):
            raise Refused(DRAWS) from error
        raise Untaken(short(error)) from error
    if passes.captured(lost):
        raise Untaken("the loss holds parameters by themselves, which nothing stands in for")
    forms: dict[str, Form] = {name: Rows(flat(g)) for name, g in rows.items()}
    return Gradients(
        forms, lost.detach(), _compared(passes, lost.detach(), tensors, structure, x, y)
    )


def by_loop(passes: Passes, x: Inputs, y: Tensor) -> Iterator[Gradients]:
    """One example after another by plain autograd on the module's own parameters."""
    lost: list[Tensor] = []
    several: list[list[Tensor]] = []
    own = list(passes.leaves.values())
    for i in range(len(y)):
        total, output = passes.plain(pick(x, slice(i, i + 1)), y[i : i + 1])
        total = total.sum()
        if not i:
            passes.captured(total)
        g = (
            torch.autograd.grad(total, own, allow_unused=True)
            if total.requires_grad
            else [None] * len(own)
        )
        pairs = zip(passes.leaves, g, strict=True)
        forms: dict[str, Form] = {
            name: Rows(flat(part[None])) for name, part in pairs if part is not None
        }
        leaves, spec = tree_flatten(output)
        lost.append(total.detach()[None])
        several.append([leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)])
        found = None
        if i == len(y) - 1 and all(
            [t.shape for t in each] == [t.shape for t in several[0]] for each in several
        ):
            tensors = [torch.stack(side) for side in zip(*several, strict=True)]
            found = _compared(passes, torch.cat(lost), tensors, [leaves, spec], x, y)
        yield Gradients(forms, lost[-1], found)


def _compared(
    passes: Passes, lost: Tensor, tensors: list[Tensor], structure: list[Any], x: Inputs, y: Tensor
) -> Tensor | None:
    """As ``mixes``, of outputs (n, 1, ...) of examples alone; None where they have no row for each
    example.
    """
    if len(y) > 1 and any(t.ndim == 1 and t.is_floating_point() for t in tensors):
        return passes.mixes_inside(x, y)  # one number of an example: its loss, or a part of it
    several = len(tensors) > 1  # of which one may have the examples along another dimension
    fits = [
        t.ndim > 1 and (t.shape[1] == 1 and not (several and t.ndim > 3 and t.shape[2] == 1))
        for t in tensors
    ]
    if len(y) < 2 or not tensors or not all(fits):
        return None
    tensors = [t.flatten(0, 1) for t in tensors]
    leaves, spec = structure
    return passes.mixes(lost, tensors, leaves, spec, y)
