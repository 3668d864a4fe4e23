"""Every argument of a call is replaced by what does not belong there; the library must answer in
its own words.

A recipe is a call in plain text. It must work; then each of its arguments (and the object before
the dot, never) is replaced in turn. A fault is an error that the library did not raise itself, a
value that is NaN where nobody asked for one, or no answer within SECONDS of the processor's time.
"""

import ast
import dataclasses
import math
import signal
import warnings
from functools import cache
from pathlib import Path

import torch

import torchdp
from torchdp.noise import Noise, SeededNoise
from torchdp.protocol import Crowd, Protocol, Tally
from torchdp.regression import SecondMoments
from torchdp.secure.protocol import Words
from torchdp.shuffle import ShuffledMessages

# torchdp/ and kernels/ lie here
LIBRARY = Path(torchdp.__file__).resolve().parent.parent
# of the processor, whatever else the machine does
SECONDS = 30
SLOW = f"no answer in {SECONDS} CPU-s"
NUMBERS = (
    math.nan,
    math.inf,
    -1.0,
    0.0,
    1e300,
    1e-300,
    1e30,
    "x",
    None,
    True,
    torch.ones(2),
    2**40,
)
COUNTS = (-1, 0, 1.5, math.nan, "x", None, True, torch.ones(2), 2**70, 2**40)
OBJECTS = (None, 1, "x", torch.ones(2), object())
# what comes from elsewhere
RECORDS = (Tally, Crowd, ShuffledMessages, Words, SecondMoments)


class TooSlow(BaseException):
    """Not an Exception: nothing in the library may catch it."""


def broken(value):
    """What to put in a tensor's place: (name, tensor or another object)."""
    yield from (("a list", value.tolist()), ("None", None), ("a string", "x"), ("a number", 1.0))
    yield "meta", torch.empty_like(value, device="meta")
    yield "complex", value.to(torch.complex64)
    yield "float8", value.to(torch.float32).to(torch.float8_e5m2)
    yield "uint16", torch.ones(value.shape, dtype=torch.uint16)
    if value.ndim:
        yield "sparse", value.to_sparse()
        yield "empty", value[:0]
        yield "one row less", value[:-1]
        yield "flat", value.flatten()[:, None, None, None]
    yield "one dimension more", value[None, None]
    yield "scalar", torch.tensor(1.0)
    if value.dtype != torch.bool:
        yield "negative", -value - 1
    if value.is_floating_point():
        for number in (math.nan, math.inf, 1e-300):
            yield str(number), torch.full_like(value, number)
        yield "float16", value.half()
        yield "requires grad", value.clone().requires_grad_()
    else:
        yield "floating", value.double() + 0.5
        yield "huge", torch.full_like(value, 2**62) if value.dtype == torch.int64 else value


class Remade:
    """A record with one part replaced, made when the call is: what its constructor says counts as
    the answer.
    """

    def __init__(self, value, name, other):
        self.value = value
        self.name = name
        self.other = other

    def __call__(self):
        return dataclasses.replace(self.value, **{self.name: self.other})


def parts(value):
    """A record of tensors with one of its parts at a time replaced: (name, record)."""
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        for what, other in of_a_dict(part) if isinstance(part, dict) else replacements(part):
            yield f"{field.name} {what}", Remade(value, field.name, other)
    yield from ((repr(other)[:30], other) for other in OBJECTS)


def of_a_dict(held):
    for name, part in held.items():
        yield from ((f"{name} {what}", {**held, name: other}) for what, other in broken(part))
    yield from (("without parts", {}), ("no dictionary", None))


def replacements(value):
    if isinstance(value, torch.Tensor):
        return broken(value)
    if isinstance(value, RECORDS):
        return parts(value)
    if isinstance(value, bytes):
        return (
            (repr(b)[:30], b)
            for b in (b"", value[:-1], value + b"\xff", bytes(len(value)), *OBJECTS)
        )
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, Noise):
        bad = (torch.Generator(), 1, "x")
    elif isinstance(value, torch.Generator):
        bad = (None, SeededNoise(1), 1, "x")
    elif isinstance(value, int):
        bad = COUNTS
    elif isinstance(value, float):
        bad = NUMBERS
    else:
        bad = OBJECTS
    return ((repr(b)[:30], b) for b in bad)


def own(error):
    """Did a ``raise`` of the library make this error? The system's own that name a file are clear
    too.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return True
    if not isinstance(error, ValueError | TypeError | ArithmeticError | OSError | RuntimeError):
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    path = Path(trace.tb_frame.f_code.co_filename).resolve()
    line = trace.tb_lineno
    if not any(path.is_relative_to(LIBRARY / part) for part in ("torchdp", "kernels")):
        return False
    return line in raised(path)


@cache
def raised(path):
    """The lines of a file that belong to a ``raise``."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def not_a_number(value, depth=3):
    if isinstance(value, torch.Tensor):
        # without data, and nobody said so
        if value.device.type == "meta":
            return True
        # the small floats have no isnan
        wide = value.dtype in (torch.float32, torch.float64)
        return wide and bool(value.isnan().any())
    if isinstance(value, float):
        return math.isnan(value)
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(
            not_a_number(getattr(value, f.name), depth - 1) for f in dataclasses.fields(value)
        )
    if depth and isinstance(value, tuple | list):
        return any(not_a_number(part, depth - 1) for part in value)
    return False


def limited(call):
    def late(*_):
        raise TooSlow

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fault_of(call):
    """What is wrong with one call, or None."""
    try:
        result = limited(call)
    except TooSlow:
        return SLOW
    except Exception as error:
        return None if own(error) else f"{type(error).__name__}: {str(error)[:120]}"
    return "a silent NaN" if not_a_number(result) else None


def faults(recipe, names):
    """All faults of one recipe, and how many calls were made."""
    call = ast.parse(recipe, mode="eval").body
    parts = [call.func, *call.args, *(k.value for k in call.keywords)]
    parts = [compile(ast.Expression(part), "<recipe>", "eval") for part in parts]
    count = len(call.args)
    titles = [f"argument {i}" for i in range(count)] + [k.arg for k in call.keywords]
    frozen = {}

    def value_of(part, known):
        """A protocol, or a verb of one, is made once: calibration takes far longer than a call."""
        if part not in frozen:
            value = eval(part, known)
            if not isinstance(getattr(value, "__self__", value), Protocol):
                return value
            frozen[part] = value
        return frozen[part]

    def made(place=None, other=None):
        known = names()
        function, *values = [value_of(part, known) for part in parts]
        if place is not None:
            values[place] = other

        def called():
            given = [value() if isinstance(value, Remade) else value for value in values]
            named = dict(zip(titles[count:], given[count:], strict=True))
            return function(*given[:count], **named)

        return called

    limited(made())
    found = []
    calls = 0
    for place, title in enumerate(titles):
        for name, other in replacements(eval(parts[1 + place], names())):
            calls += 1
            wrong = fault_of(made(place, other))
            # 2^40 steps were asked for: they may take their time
            asked = wrong == SLOW and isinstance(other, int) and other == 2**40
            if wrong and not asked:
                found.append(f"{recipe} with {title} = {name}: {wrong}")
    return found, calls
