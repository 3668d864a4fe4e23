"""Each example's own gradients, by three routes.

In one pass of the batch, uses of parameters recorded, and each new program followed
(``by_factors``); on the other two each example alone, as torch runs it (``by_vmap``, ``by_loop``).
"""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from torchdp.training.accepted import MEETS, SYSTEM, OwnRules, meet
from torchdp.training.calls import Untaken
from torchdp.training.factors import Form, Rows, joined
from torchdp.training.per_example import (
    DRAWS,
    Gradients,
    Inputs,
    Output,
    Passes,
    cut,
    due,
    flat,
    mapped,
    masks,
    short,
)
from torchdp.training.record import Inside, Program, Record, Refused, backward
from torchdp.training.rules import RULES
from torchdp.training.track import MOST, Track, prime

# Examples that a program is checked by; more where Python asked for bool() of data, since rows may
# answer otherwise than all batches do.
CHECKED = 3
CHECKED_ASKED = 12

# Of an example's gradient: what a program's may differ by. A factor of the precision that the
# pass was computed in, and a floor.
TOLERANCE = 2.0**10
LEAST_TOLERANCE = 1e-9


def by_factors(passes: Passes, x: Inputs, y: Tensor) -> Gradients:
    """All examples at once.

    A new program of operations is followed once, which shows that examples are apart in it. What it
    finds is checked against examples alone: that it is the gradient, and depends neither on places
    nor on the number of examples.
    """
    gradients, record = recorded(passes, x, y)
    known = passes.known
    program = record.n, hash(tuple(record.program))
    if program in known.programs:
        if known.calls and due(known.calls):
            _checked(passes, x, y, gradients, record)
        return gradients
    if known.calls and record.n > 1:
        mixed = meet(passes, x, record.n)
        if mixed is not None and mixed.any():
            raise ValueError(MEETS)
    if not any(template.at(record.n) == record.program for template in known.templates):
        template = _followed(passes, x, y, record)
        # A program that no example has vouched for is new at its next use.
        if not _checked(passes, x, y, gradients, record):
            return gradients
        if template is not None:
            known.templates.append(template)
    known.programs.add(program)
    return gradients


def _followed(passes: Passes, x: Inputs, y: Tensor, record: Record) -> Program | None:
    """Sees that all that gradients are made of is each example's own. Raises Untaken.

    In a pass of so many examples, the batch's over again, that their number divides no size that
    the batch's pass has made: what the number divides counts examples then, and the program, which
    is returned, is that of any number. Else in one of as many as the batch's, for which alone it
    stands.
    """
    n = record.n
    if n == 1:
        return None
    own = prime(n, record.sizes)
    try:
        program = _program(passes, x, y, own)
        if program.at(n) == record.program:
            return program
    except Untaken as error:
        if own == n:
            raise
        reason = str(error)
    else:
        reason = f"of {own} examples it is another program"
    if n > MOST:
        raise Untaken(f"{reason}, and {n} are too many to be followed")
    if _program(passes, x, y, n).steps != record.program:
        raise Untaken("it is another program each time")
    return None


def _program(passes: Passes, x: Inputs, y: Tensor, count: int) -> Program:
    """That of a pass of so many of the examples, over again, which is followed. Raises Untaken."""
    places = torch.arange(count, device=y.device) % len(y)
    track = Track(count)

    def rows(value: Tensor) -> Tensor:
        return track.rows(value[places])

    with masks(None, y.device), track.following():
        _, record = recorded(passes, mapped(rows, x), rows(y), track)
    return Program(count, record.program)


def _checked(passes: Passes, x: Inputs, y: Tensor, gradients: Gradients, record: Record) -> bool:
    """Whether some examples' gradients are those of the examples alone.

    False where no example has a gradient. Raises Untaken where they differ.
    """
    if not gradients.forms:
        return False
    norms = torch.stack([form.norms() for form in gradients.forms.values()]).norm(dim=0)
    # An example whose gradient is 0 or no number vouches for nothing.
    places = (norms.isfinite() & (norms > 0)).nonzero()[:, 0].tolist()
    if not places:
        return False
    if passes.seeded:
        program = record.functions()
        with passes.still():
            gradients, record = recorded(passes, x, y)
        if record.functions() != program:
            raise Untaken("without draws it is another program")
    # The square root of a square root: what half precision leaves of a deep module's gradient.
    tolerance = max(LEAST_TOLERANCE, min(TOLERANCE * record.coarsest, record.coarsest**0.25))
    some = CHECKED_ASKED if record.asked else CHECKED
    for i in SYSTEM.sample(places, min(some, len(places))):
        _hold(gradients, i, _one_alone(passes, x, y, i), tolerance)
    return True


def _one_alone(passes: Passes, x: Inputs, y: Tensor, i: int) -> dict[str, Tensor]:
    """The gradient of one example by plain autograd, in each parameter (1, size)."""
    cudnn = torch.backends.cudnn
    # Convolutions of a GPU without short products.
    with passes.still(), cudnn.flags(enabled=cudnn.enabled, allow_tf32=False):
        total, _ = passes.plain(*cut(x, y, slice(i, i + 1)))
        total = total.sum()
        found = backward([total], [torch.ones_like(total)], list(passes.leaves.values()))
    gradients = {}
    for (name, p), g in zip(passes.leaves.items(), found, strict=True):
        gradients[name] = flat((torch.zeros_like(p) if g is None else g)[None])
    return gradients


def _hold(gradients: Gradients, place: int, wanted: dict[str, Tensor], tolerance: float) -> None:
    """Raises Untaken where the gradients at a place are not those that are wanted there."""
    size = float(torch.stack([g.double().norm() for g in wanted.values()]).norm())
    for name, g in wanted.items():
        form = gradients.forms.get(name)
        with torch.autocast(g.device.type, enabled=False):
            mine = 0.0 if form is None else form.pick(slice(place, place + 1)).whole()
            off = float((g - mine).double().norm())
        # ``not <=``: NaN is refused as well.
        if not off <= tolerance * size:
            raise Untaken(
                f"{name} has another gradient than for an example alone, by {off:.1g} of {size:.1g}"
            )


def recorded(
    passes: Passes, x: Inputs, y: Tensor, track: Track | None = None
) -> tuple[Gradients, Record]:
    """What a pass of the batch finds, unchecked, and its record; track: as of :class:`Record`.

    Raises Untaken.
    """
    known = passes.known
    # Where the loss is inside of the module is seen by its failing, once for these shapes.
    record = Record(passes.leaves, len(y), RULES, known.inside, track)
    try:
        with passes.unset():
            return _pass(passes, record, x, y), record
    except Inside:
        if known.inside:
            raise
        known.inside = True
        return recorded(passes, x, y, track)
    except (Refused, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of whatever kind: the next route shows if it is the module's own
        raise Untaken(short(error)) from error


class _Losses(NamedTuple):
    """Each example's loss, and the gradients of their sum.

    losses: (n,). down: the gradients in the tensors ``live``. rows: in the parameters that the loss
    reaches by itself. mixes: as of :class:`Gradients`.
    """

    losses: Tensor
    live: list[Tensor]
    down: list[Tensor]
    rows: dict[str, Tensor]
    mixes: Tensor | None = None


def _pass(passes: Passes, record: Record, x: Inputs, y: Tensor) -> Gradients:
    labels = record.data(y) if record.inside else None
    total, returned = passes.on_copies(mapped(record.data, x), labels, record)
    record.finished()
    losses = _losses(passes, record, total, Output.of(returned), y)
    with torch.autocast(y.device.type, enabled=False):
        forms = _forms(passes, record, losses)
    return Gradients(forms, losses.losses.detach(), losses.mixes)


def _losses(passes: Passes, record: Record, total: Tensor, output: Output, y: Tensor) -> _Losses:
    n = record.n
    if record.inside:
        if not record.reduced or total.ndim or not total.requires_grad:
            raise Untaken("the loss inside of the module is no mean that is known")
        return _Losses(total.expand(n) / n, [total], [torch.ones_like(total)], {})
    tensors = output.tensors
    live = [t for t in tensors if t.requires_grad]
    if not live or any(not t.ndim or len(t) != n for t in tensors):
        raise Untaken("what the module returns has no row for each example")
    if len(output.leaves) == len(live) == 1:
        losses = closed(passes.both.loss, live[0], y)
        if losses is not None:
            return _Losses(losses, [losses], [torch.ones_like(losses)], {})
    losses, down, rows = _losses_by_vmap(passes, output, y)
    for g in rows.values():
        record.own(g)
    compares = n > 1 and record.track is None
    mixes = passes.mixes(losses, tensors, output, y) if compares else None
    return _Losses(losses, live, down, rows, mixes)


def _losses_by_vmap(
    passes: Passes, output: Output, y: Tensor
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Each example's loss, its gradients in the live tensors, and in parameters that it reaches."""
    live = [t.requires_grad for t in output.tensors]
    outs = [t.detach() for t in output.tensors if t.requires_grad]
    others = [t for t in output.tensors if not t.requires_grad]

    def loss(own: Any, outs: list[Tensor], others: list[Tensor], y: Tensor) -> Any:
        rest = iter(others)
        mine = iter(outs)
        rows = [next(mine if is_live else rest)[None] for is_live in live]
        total, _ = passes.call(own, None, y[None], output.rebuilt(rows))
        total = total.sum()
        return total, total

    known = passes.known
    # The first example shows which parameters the loss holds; vmap sees no other ones.
    if known.reached is None:
        total, _ = loss({}, [t[0] for t in outs], [t[0] for t in others], y[0])
        known.reached = passes.captured(total)
    own = {name: passes.leaves[name].detach() for name in known.reached}
    gradient = grad(loss, argnums=(0, 1), has_aux=True)
    mapping = vmap(gradient, (None, 0, 0, 0), randomness=passes.randomness)
    (rows, down), losses = mapping(own, outs, others, y)
    if passes.captured(losses):
        raise Untaken("the loss holds parameters by themselves, or others than before")
    return losses.detach(), down, rows


def closed(loss: Any, z: Tensor, y: Tensor) -> Tensor | None:
    """Each example's loss of rows (n, classes) or (n, ...), by one call.

    Where it is torch's mean of cross entropies or squares, else None.
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


def _forms(passes: Passes, record: Record, losses: _Losses) -> dict[str, Form]:
    """What each parameter's gradients are.

    Raises Untaken where one is used in a way that has no rule.
    """
    leaves = passes.leaves
    claims = record.claims
    # One backward pass: in what stands in for parameters, and in the parameters themselves.
    places = [*(claim.at for claim in claims), *leaves.values()]
    gradients = record.backward(losses.live, losses.down, places)
    for name, g in zip(leaves, gradients[len(claims) :], strict=True):
        if g is not None:
            raise Untaken(f"{name} is used in a way that has no rule")
    forms: dict[str, list[Form]] = {name: [Rows(flat(g))] for name, g in losses.rows.items()}
    names = {id(p): name for name, p in leaves.items()}
    sources: dict[int, Tensor] = {}
    uses: dict[int, list[Form]] = {}
    size = 0
    # Of hooks, too, which run in the backward pass.
    record.finished()
    for claim, g in zip(claims, gradients, strict=False):
        if g is not None:
            record.own(g)
            record.constants(claim.source)
            key = id(claim.source)
            sources[key] = claim.source
            uses.setdefault(key, []).append(claim.form(g))
            size += g.nbytes
    for key, parts in uses.items():
        if key in names:
            forms.setdefault(names[key], []).extend(parts)
            continue
        # A use of what was made of parameters, as a part or a sum of them.
        derived = _derived(sources[key], list(leaves.values()), joined(parts).whole())
        for name, part in zip(leaves, derived, strict=True):
            if part is not None:
                forms.setdefault(name, []).append(Rows(flat(part)))
    joint = {name: joined(parts) for name, parts in forms.items()}
    passes.known.each = (size + sum(form.bytes for form in joint.values())) // record.n
    return joint


def _derived(source: Tensor, parameters: list[Tensor], rows: Tensor) -> list[Tensor | None]:
    """Gradients in the parameters that ``source`` is made of, of those in itself, (n, size)."""
    cotangents = rows.reshape(-1, *source.shape).to(source.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The graph is kept: several uses may be of parts of one sum of parameters.
        gradients = torch.autograd.grad(
            source,
            parameters,
            cotangents,
            is_grads_batched=True,
            allow_unused=True,
            retain_graph=True,
        )
    return list(gradients)


def by_vmap(passes: Passes, x: Inputs, y: Tensor) -> Gradients:
    """All examples at once, each alone under vmap, without custom functions' own rules for it."""
    if any(isinstance(part, nn.RNNBase) for part in passes.both.modules()):
        raise Untaken("a recurrent layer has weights that nothing can stand in for")
    outputs: list[Output] = []  # what is no tensor can not leave vmap otherwise

    def loss(known: dict[str, Tensor], x: Inputs, y: Tensor) -> Any:
        total, returned = passes.call(known, mapped(lambda value: value[None], x), y[None])
        outputs.append(Output.of(returned))
        total = total.sum()
        return total, (total, outputs[-1].tensors)

    constants = {name: p.detach() for name, p in passes.leaves.items()}
    try:
        mapping = vmap(grad(loss, has_aux=True), (None, 0, 0), randomness=passes.randomness)
        # A custom function's own rule for vmap sees all examples together.
        with OwnRules(), passes.unset():
            rows, (losses, tensors) = mapping(constants, x, y)
    except (Refused, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of whatever kind, as torch.cond's KeyError under a transform
        if "randomness error mode" in str(error):
            raise Refused(DRAWS) from error
        raise Untaken(short(error)) from error
    if passes.captured(losses):
        raise Untaken("the loss holds parameters by themselves, which nothing stands in for")
    forms: dict[str, Form] = {name: Rows(flat(g)) for name, g in rows.items()}
    losses = losses.detach()
    return Gradients(forms, losses, _compared(passes, losses, tensors, outputs[-1], x, y))


def by_loop(passes: Passes, x: Inputs, y: Tensor) -> Iterator[Gradients]:
    """One example after another by plain autograd on the module's own parameters."""
    losses: list[Tensor] = []
    rows: list[list[Tensor]] = []
    own = list(passes.leaves.values())
    for i in range(len(y)):
        total, returned = passes.plain(*cut(x, y, slice(i, i + 1)))
        total = total.sum()
        forms: dict[str, Form] = {}
        if total.requires_grad:
            gradients = torch.autograd.grad(total, own, allow_unused=True)
            for name, g in zip(passes.leaves, gradients, strict=True):
                if g is not None:
                    forms[name] = Rows(flat(g[None]))
        output = Output.of(returned)
        losses.append(total.detach()[None])
        rows.append([t.detach() for t in output.tensors])
        mixes = None
        if i == len(y) - 1 and len({tuple(t.shape for t in row) for row in rows}) == 1:
            tensors = [torch.stack(column) for column in zip(*rows, strict=True)]
            mixes = _compared(passes, torch.cat(losses), tensors, output, x, y)
        yield Gradients(forms, losses[-1], mixes)


def _compared(
    passes: Passes, losses: Tensor, tensors: list[Tensor], output: Output, x: Inputs, y: Tensor
) -> Tensor | None:
    """As ``mixes``, of outputs (n, 1, ...) of examples alone.

    None where they have no row for each example.
    """
    if len(y) < 2:
        return None
    if any(t.ndim == 1 and t.is_floating_point() for t in tensors):
        return passes.mixes_inside(x, y)  # one number of an example: its loss, or a part of it
    several = len(tensors) > 1
    for t in tensors:
        # Of several outputs one may have the examples along another dimension.
        elsewhere = several and t.ndim > 3 and t.shape[2] == 1
        if t.ndim < 2 or t.shape[1] != 1 or elsewhere:
            return None
    if not tensors:
        return None
    return passes.mixes(losses, [t.flatten(0, 1) for t in tensors], output, y)
