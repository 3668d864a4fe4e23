"""The noise of one matrix mechanism, step by step, each step's drawn once.

Whatever is interrupted, forked or copied. Notation: w_t is the noise of step t, z_t and u_t normal
draws, see :class:`Recurrence`.
"""

import hashlib
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import Recurrence
from torchdp.factorization.streams.recurrence import row
from torchdp.kernels import chacha, correlated_noise
from torchdp.noise import process
from torchdp.training import replicas

# Bytes; the whole stream of noise is a function of them.
KEY = 32

# Numbers of a step made together: on the CPU they stay in the cache.
AT_ONCE = 2**16
AT_ONCE_THERE = 2**26

# Of the noise: what rounding a sum may move it by.
COARSE = 2.0**-6

# Of the numbers that a key gives: a secret state of another version is refused.
VERSION = 3

SECRET = ("version", "law", "first", "whole", "past", "step", "key")
REPEATED = "this thread drew noise while it was drawing noise: in a signal handler or a hook"


class _At(NamedTuple):
    """Where a stream is: assigned as a whole, so that an interrupt leaves one place or the other.

    The past's numbers before ``place`` are past ``step``, and unless ``sure`` some of the next ones
    may be.
    """

    step: int
    place: int = 0
    sure: bool = True


class Stream:
    """The noise of a :class:`Recurrence`, z_t sigma times the normals of ChaCha20 under key and t.

    One thread at a time draws, the others wait. Copies and pickles raise TypeError: they would
    repeat the noise. The past is changed in place, some numbers at a time. A step that was
    interrupted is finished at the next call, unseen; the numbers among which it was interrupted are
    made again from the key, in the time of all their steps.

    Args:
        recurrence: how w_t is made.
        part: (first, size, whole), the numbers ``first`` to ``first + size`` of a gradient of
            ``whole`` ones; a number's noise does not depend on who draws it.
        sigma: standard deviation of Z's entries.
        key: 32 bytes.
        dtype: float32 or float64.
        sharded: whether each process draws another part, so that their sums are not compared.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        part: tuple[int, int, int],
        sigma: float,
        key: bytes,
        dtype: torch.dtype,
        sharded: bool,
    ) -> None:
        _has_digits(dtype, sigma, recurrence)
        self.first, self.size, self.whole = part
        checks.fits("size", recurrence.memory + 1, self.size)
        self.steps = checks.integer("steps", recurrence.steps, 1, correlated_noise.STEPS)
        self.sigma = sigma
        self.dtype = dtype
        self._place(recurrence, recurrence.scale.device)
        self._past = torch.zeros(recurrence.memory, self.size, dtype=dtype, device=self.device)
        self._deviations = (sigma * recurrence.deviations).cpu().tolist()
        distribution = repr((sigma, self.whole, str(dtype))).encode()
        self._digest = hashlib.sha256(recurrence.digest() + distribution).digest()
        self._lock = threading.RLock()
        self._process = process()
        self._at = _At(0)
        self._several = replicas.several()
        self._sharded = sharded
        self._key = replicas.from_first(key) if self._several else key
        self._awaited: int | None = None  # the step of a state dict whose noise is not here
        self._refused: Tensor | None = None  # on a GPU: whether a sum was refused

    @property
    def step(self) -> int:
        """How many steps are spent."""
        step, place, sure = self._at
        return step + (place > 0 or not sure)

    def next(self, total: Tensor) -> Tensor:
        """``total``, which it does not change, and the noise of the next step: (size,)."""
        # Before the lock, which a thread of the parent may hold for ever.
        if self._process != process():
            raise RuntimeError(
                "this noise was made before a fork, and its parent may draw it too; make the noise "
                "in the child, or load_secret_state there if the parent draws no more"
            )
        with self._lock:
            self._finish()
            t = self.step
            if self._awaited is not None:
                raise RuntimeError(
                    f"the state dict is of a stream at step {self._awaited}, whose noise it does "
                    "not hold; load_secret_state first"
                )
            if t >= self.steps:
                raise RuntimeError(
                    f"all {t} steps of the strategy are spent; make one for more steps"
                )
            # Before any noise is drawn: a sum that is refused on the CPU spends no step.
            self._judge(total, self._deviations[min(t, len(self._deviations) - 1)])
            if self._several:
                # One noise on several sums would publish their difference without noise.
                digest = hashlib.sha256(self._key + self._digest).digest()
                replicas.check_agree(t, digest, total[:0] if self._sharded else total)
            private = self._advance(t, total)
        # The host learns of a refusal on a GPU later: until then the output itself is NaN.
        return private if self._refused is None else torch.where(self._refused, torch.nan, private)

    def skip(self, step: int) -> None:
        """Spends all steps before ``step``, whose noise is never released. Raises ValueError."""
        with self._lock:
            self._finish()
            checks.integer("step", step, self.step, self.steps)
            # Later noise is made of the past; without one nothing needs to be drawn.
            while len(self._past) and self.step < step:
                self._advance(self.step)
            self._at = _At(step)
            self._awaited = None

    def _judge(self, total: Tensor, least: float) -> None:
        """Refuses a sum whose rounding would swallow noise of this deviation.

        At once where it lies on the CPU. On another device the noise is NaN from then on, and a
        later step raises: the host never waits.
        """
        largest = COARSE * least / torch.finfo(self.dtype).eps
        if total.device.type == "cpu":
            fits = float(total.abs().max()) <= largest
        else:
            wrong = ~(total.abs().max() <= largest)  # NaN too
            if self._refused is None:
                self._read = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=True)
            fits = not bool(self._read)  # of the steps that the device has finished
            self._refused = wrong if self._refused is None else self._refused | wrong
            self._read.copy_(self._refused, non_blocking=True)
        if not fits:
            raise ValueError(
                f"total is so large that {self.dtype} has no digits for noise of {least:.1e}, or "
                "not finite; use float64, and check that each user's part was clipped"
            )

    def expect(self, step: int) -> None:
        """A state dict says that ``step`` steps are spent.

        Raises RuntimeError where that would go back.
        """
        with self._lock:
            if step == self.step:
                self._awaited = None
            elif self.step == 0:
                self._awaited = step
            else:
                raise RuntimeError(
                    f"the state dict is of a stream at step {step}, this one is at {self.step}: "
                    "noise would repeat; make new noise for a new run"
                )

    def move(self, device: torch.device) -> None:
        """To another device; dtypes and values stay as they are."""
        if device.type == "meta":
            raise RuntimeError("noise can not go to the meta device: its state would be lost")
        with self._lock:
            self._finish()
            self._place(self._recurrence, device)
            self._past = self._past.to(device)
            if self._refused is not None:
                self._refused = self._refused.to(device)

    def secret_state(self) -> dict[str, Any]:
        """Tensors and numbers that say everything."""
        with self._lock:
            self._finish()
            return {
                "version": VERSION,
                "law": tensor_of(self._digest),
                "first": self.first,
                "whole": self.whole,
                "past": self._past.clone(),
                "step": self.step,
                "key": tensor_of(self._key),
            }

    def load_secret_state(self, state: dict[str, Any]) -> None:
        """Goes on where ``state`` was taken, by a stream of this distribution.

        Raises TypeError, ValueError.
        """
        if not isinstance(state, dict) or set(state) != set(SECRET):
            raise ValueError(
                f"state must be what secret_state returns, a dict of {', '.join(SECRET)}"
            )
        if state["version"] != VERSION:
            raise ValueError(
                f"state is of version {state['version']}, which drew other numbers, not {VERSION}"
            )
        step = checks.integer("step", state["step"], 0, self.steps)
        part = state["first"], state["whole"]
        if part != (self.first, self.whole):
            raise ValueError(
                f"the secret state is of another part of a gradient, first, whole = {part}"
            )
        key = octets("key", state["key"])
        if octets("law", state["law"]) != self._digest:
            raise ValueError(
                "state is of noise of another strategy, sigma or dtype: load it into its like"
            )
        past = state["past"]
        shape = self._past.shape
        if not isinstance(past, Tensor) or past.shape != shape or not past.isfinite().all():
            raise ValueError(f"past must be a finite {tuple(shape)} tensor, as in secret_state()")
        with self._lock:
            self._refuse_midst(sys._getframe().f_back)
            if self._awaited not in (None, step):
                raise ValueError(
                    f"the secret state is at step {step}, the state dict at {self._awaited}"
                )
            if key == self._key and step < self.step:
                raise ValueError(
                    f"state is at step {step}, this stream at {self.step}: its noise would repeat"
                )
            loaded = {
                "_past": past.to(self._past, copy=True),
                "_key": key,
                "_at": _At(step),
                "_awaited": None,
                "_process": process(),
            }
            # All at once: an interrupt leaves one state or the other.
            vars(self).update(loaded)

    def _advance(self, t: int, total: Tensor | None = None) -> Tensor:
        """Step t from where it is begun on: ``total`` with its noise, (size,).

        For None the noise is never released.
        """
        if self._at.step != t:
            raise RuntimeError(REPEATED)
        step = self._now(t)
        size = 0 if total is None else self.size
        out = torch.empty(size, dtype=self.dtype, device=self.device)
        place = self._at.place
        while place < self.size:
            # Before the past changes: an interrupt must find these numbers in doubt, not made.
            self._at = _At(t, place, False)
            part = self._part(place)
            if total is None:
                self._change(t, step, part)
            else:
                self._change(t, step, part, total[part], out[part])
            place = part.stop
            self._at = self._after(t, place)
        return out

    def _change(
        self,
        t: int,
        step: correlated_noise.Step,
        part: slice,
        total: Tensor | None = None,
        out: Tensor | None = None,
    ) -> None:
        """Step t of some numbers of the past; ``out``, which changes, becomes total and noise."""
        past = self._past[:, part]
        if total is None or out is None:
            total = out = past.new_empty(past.shape[1])
        first = self.first + part.start
        key = chacha.key_of(self._key, self.device)
        correlated_noise.add((out, past), total, step, key, t, first)

    def _finish(self) -> None:
        """Ends a step that was interrupted.

        Raises RuntimeError where this thread is still in the midst of one.
        """
        self._refuse_midst(sys._getframe(1).f_back)
        t, place, sure = self._at
        # Without a past nothing is half done, and the step that was begun counts as spent.
        if not len(self._past):
            self._at = _At(self.step)
        elif not sure:
            # Some of these numbers may be of step t already: all steps again, from the key.
            part = self._part(place)
            self._past[:, part] = 0
            for earlier in range(t + 1):
                self._change(earlier, self._now(earlier), part)
            self._at = self._after(t, part.stop)
        if self._at.place:
            self._advance(t)

    def _refuse_midst(self, frame: FrameType | None) -> None:
        """Raises RuntimeError where a function of this stream called ``frame``, or is it."""
        # The lock lets its own thread in again: a signal handler that draws is found here.
        while frame is not None:
            if frame.f_code.co_filename == __file__ and frame.f_locals.get("self") is self:
                raise RuntimeError(REPEATED)
            frame = frame.f_back

    def _part(self, place: int) -> slice:
        """The numbers from ``place`` on that are made together."""
        at_once = AT_ONCE if self.device.type == "cpu" else AT_ONCE_THERE
        return slice(place, min(place + at_once, self.size))

    def _after(self, t: int, place: int) -> _At:
        """Where the stream is once step t's numbers before ``place`` are made."""
        return _At(t, place) if place < self.size else _At(t + 1)

    def _place(self, recurrence: Recurrence, device: torch.device) -> None:
        """What steps are made of, on the noise's device."""
        self.device = device
        self._recurrence = recurrence.to(device)
        self._lags = torch.tensor(recurrence.lags, dtype=torch.int32, device=device)

    def _now(self, t: int) -> correlated_noise.Step:
        """Step t's numbers; w_s and u_s lie in rings, at s modulo their lengths."""
        C = self._recurrence
        running = len(C.gains)
        p = C.of_w.shape[1]
        q = C.of_u.shape[1]
        # Coefficients come by lag: turned to where w_s is, at s modulo the ring's length.
        rings = [row(x, t).flip(0).roll(t % max(1, x.shape[1])) for x in (C.of_w, C.of_u)]
        slot_of_w = running + t % p if p else -1
        slot_of_u = running + p + t % q if q else -1
        draws = sum(lag <= t for lag in C.lags)
        feeds = self.sigma * row(C.feeds, t)[:draws]
        return correlated_noise.Step(
            torch.cat([C.gains, *rings]).to(self.dtype),
            C.decays.to(self.dtype),
            torch.cat([row(C.scale, t)[None], feeds]),
            self._lags[:draws],
            (slot_of_w, slot_of_u),
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "noise can not be copied or pickled: the copy would draw the same numbers, and their "
            "difference would publish data; move it by secret_state() and load_secret_state(), and "
            "use one of the two only"
        )


def tensor_of(key: bytes) -> Tensor:
    """uint8, (KEY,), for a secret state."""
    return torch.frombuffer(bytearray(key), dtype=torch.uint8)


def octets(name: str, value: object) -> bytes:
    """What :func:`tensor_of` was made of. Raises ValueError."""
    if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.shape != (KEY,):
        raise ValueError(f"{name} must be a uint8 tensor of shape ({KEY},), as in secret_state()")
    return bytes(value.tolist())


def _has_digits(dtype: torch.dtype, sigma: float, C: Recurrence) -> None:
    """Raises TypeError, ValueError unless each step's noise is of numbers with all their digits."""
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise must be float32 or float64, not {dtype}: fewer digits show through")
    # Far from either end: subnormal numbers have fewer digits, and sums may overflow.
    low = 1e6 * torch.finfo(dtype).tiny
    high = 1e-6 * torch.finfo(dtype).max
    diagonal = 1 / C.deviations
    least = float(diagonal.min())
    factors = (diagonal, C.scale, C.feeds, C.of_w, C.of_u)
    most = max(float(x.abs().max()) for x in factors if x.numel())
    if not (low < min(sigma, least, sigma / most) and max(sigma, most, sigma / least) < high):
        raise ValueError(
            f"strategy and sigma = {sigma:.3g} leave ({low:.0e}, {high:.0e}), where {dtype} noise "
            "keeps its distribution; divide both by the strategy's largest entry, which changes "
            "nothing else"
        )
