"""The noise of one matrix mechanism, step by step: w_t is drawn once, whatever is interrupted, forked or copied."""

import hashlib
import threading
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.structure.buffered import residues
from torchdp.noise import SeededNoise, process
from torchdp.training import replicas

KEY = 32  # bytes; the whole stream of noise is a function of them
AT_ONCE = 2**20  # normals drawn in float64 together
COARSE = 2.0**-6  # of the noise: what rounding a sum may move it by
PLACE = ("steps", "first", "whole")  # of the strategy; of this part of a gradient
SECRET = ("coefficients", "buffers", *PLACE, "sigma", "past", "step", "key")


class Stream:
    """w_t = (sigma z_t - sum_{s<t} C_ts w_s) / C_tt for t = 0, 1, ...; z_t from ChaCha20 under the key, t and a block.

    coefficients: [t, j] = C[t, t - j], (steps or 1, bands), float64; with ``buffers``, the poles and zeros of a
    :class:`BufferedStrategy`, (2, count): [t] = (C_tt, D2_t), and the past is the running numbers. For none: (2, 0).
    size, first, whole: numbers ``first`` to ``first + size`` of a gradient of ``whole`` ones; a number's noise does not
    depend on who draws it. key: 32 bytes. One thread at a time draws, the others wait. Copies and pickles raise
    TypeError: they would repeat the noise.
    """

    def __init__(
        self,
        coefficients: Tensor,
        buffers: Tensor,
        steps: int,
        size: int,
        first: int,
        whole: int,
        sigma: float,
        key: bytes,
        dtype: torch.dtype,
        alone: bool,
    ) -> None:
        _has_digits(dtype, sigma, coefficients)
        memory = buffers.shape[1] or coefficients.shape[1] - 1
        checks.fits("size", memory + 1, size)
        self.coefficients, self.buffers, self.sigma = coefficients, buffers, sigma
        self.steps, self.first, self.whole = steps, first, whole
        self._past = torch.zeros(memory, size, dtype=dtype, device=coefficients.device)
        self._lock, self._process = threading.RLock(), process()
        self._done: tuple[int, Tensor | None] = (0, None)  # steps that are spent; what is not yet in _past
        self._alone = alone or not replicas.several()
        self._key = key if self._alone else replicas.from_first(key)
        self._digest = self._identify()
        self._awaited: int | None = None
        self._refused: Tensor | None = None  # on another device than the CPU: whether a sum was refused

    @property
    def size(self) -> int:
        """Numbers in a gradient."""
        return self._past.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the noise."""
        return self._past.dtype

    @property
    def device(self) -> torch.device:
        """Of the noise."""
        return self._past.device

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self._done[0]

    def next(self, total: Tensor) -> Tensor:
        """The noise of the next step, for ``total``, which it does not change: (size,)."""
        if self._process != process():  # before the lock, which a thread of the parent may hold for ever
            raise RuntimeError(
                "this noise was made before a fork, and its parent may draw it too; make the noise in the child, "
                "or load_secret_state there if the parent draws no more"
            )
        with self._lock:
            self._keep()
            t = self.step
            if self._awaited is not None:
                raise RuntimeError(
                    f"the state dict is of a stream at step {self._awaited}, whose noise it does not hold; "
                    "load_secret_state first"
                )
            if t >= self.steps:
                raise RuntimeError(f"all {t} steps of the strategy are spent; make one for more steps")
            self._judge(
                total, self.sigma / self._diagonal[min(t, len(self._diagonal) - 1)]
            )  # the noise's deviation, given all before
            if not self._alone:
                replicas.check_agree(t, self._digest, total if len(total) == self.whole else total[:0])
            noise, kept = self._draw(t)
            if self.step != t:
                raise RuntimeError(
                    "this thread drew noise while it was drawing noise: in a signal handler or a hook"
                )
            self._done = (t + 1, kept)  # the step is spent here, at once; before it nobody has seen the noise
            self._keep()
        return noise if self._refused is None else torch.where(self._refused, torch.nan, noise)

    def skip(self, step: int) -> None:
        """Spends all steps before ``step``, whose noise nobody sees. Raises ValueError."""
        with self._lock:
            self._keep()
            checks.integer("step", step, self.step, self.steps)
            while self.step < step:
                self._done = (self.step + 1, self._draw(self.step)[1] if len(self._past) else None)
                self._keep()
            self._awaited = None

    def _judge(self, total: Tensor, least: float) -> None:
        """Refuses a sum whose rounding would swallow noise of this deviation: at once where it lies on the CPU.

        On another device the noise is NaN from then on, and a later step raises: the host never waits.
        """
        largest = COARSE * least / torch.finfo(self.dtype).eps
        if total.device.type == "cpu":
            fits = float(total.abs().max()) <= largest
        else:
            wrong = ~(total.abs().max() <= largest)  # NaN too
            if self._refused is None:
                self._read = torch.zeros((), dtype=torch.bool, pin_memory=True)
            fits = not bool(self._read)  # of the steps that the device has finished
            self._refused = wrong if self._refused is None else self._refused | wrong
            self._read.copy_(self._refused, non_blocking=True)
        if not fits:
            raise ValueError(
                f"total is so large that {self.dtype} has no digits for noise of {least:.1e}, or not finite; use "
                "float64, and check that each user's part was clipped"
            )

    def expect(self, step: int) -> None:
        """A state dict says that ``step`` steps are spent. Raises RuntimeError where that would go back."""
        with self._lock:
            if step == self.step:
                self._awaited = None
            elif self.step == 0:
                self._awaited = step
            else:
                raise RuntimeError(
                    f"the state dict is of a stream at step {step}, this one is at {self.step}: noise would repeat; "
                    "make new noise for a new run"
                )

    def move(self, device: torch.device) -> None:
        """To another device; dtypes and values stay as they are."""
        if device.type == "meta":
            raise RuntimeError("noise can not go to the meta device: its state would be lost")
        with self._lock:
            self._keep()
            self.coefficients, self.buffers = self.coefficients.to(device), self.buffers.to(device)
            self._past = self._past.to(device)
            self._refused = None if self._refused is None else self._refused.to(device)

    def secret_state(self) -> dict[str, Any]:
        """Tensors and numbers that say everything."""
        with self._lock:
            self._keep()
            key = torch.frombuffer(bytearray(self._key), dtype=torch.uint8)
            held = (self.coefficients.clone(), self.buffers.clone())
            place = (self.steps, self.first, self.whole)
            values = (*held, *place, self.sigma, self._past.clone(), self.step, key)
        return dict(zip(SECRET, values, strict=True))

    def load_secret_state(self, state: dict[str, Any]) -> None:
        """Goes on where ``state`` was taken. Raises TypeError, ValueError."""
        if not isinstance(state, dict) or set(state) != set(SECRET):
            raise ValueError(f"state must be what secret_state returns, a dict of {', '.join(SECRET)}")
        coefficients = checks.matrix("coefficients", state["coefficients"]).double()
        rows, bands = coefficients.shape
        steps, place = checks.integer("steps", state["steps"], 1), (state["first"], state["whole"])
        buffers = checks.floating("buffers", state["buffers"]).double()
        memory = (buffers.shape[1] if buffers.ndim == 2 else 0) or bands - 1
        if buffers.ndim != 2 or len(buffers) != 2 or (buffers.numel() and bands != 2):
            raise ValueError("buffers must be of shape (2, count), as in secret_state()")
        sigma, step = checks.positive("sigma", state["sigma"]), checks.integer("step", state["step"], 0)
        past, key = state["past"], state["key"]
        if not isinstance(past, Tensor) or past.shape != (memory, self.size) or not past.isfinite().all():
            raise ValueError(f"past must be a finite ({memory}, {self.size}) tensor, as in secret_state()")
        if not isinstance(key, Tensor) or key.dtype != torch.uint8 or key.shape != (KEY,):
            raise ValueError(f"key must be a uint8 tensor of shape ({KEY},), as in secret_state()")
        if step > steps or rows not in (1, steps) or not (coefficients[:, 0] > 0).all():
            raise ValueError(f"step must be at most {steps} and coefficients[:, 0] positive, as in secret_state()")
        if place != (self.first, self.whole):
            raise ValueError(f"the secret state is of another part of a gradient, first, whole = {place}")
        _has_digits(past.dtype, sigma, coefficients)
        with self._lock:
            if self._awaited not in (None, step):
                raise ValueError(f"the secret state is at step {step}, the state dict at {self._awaited}")
            if bytes(key.tolist()) == self._key and step < self.step:
                raise ValueError(f"state is at step {step}, this stream at {self.step}: its noise would repeat")
            self.coefficients, self.sigma = coefficients.to(self.device, copy=True), sigma
            self.steps = steps
            self.buffers = buffers.to(self.device, copy=True)
            self._past, self._key = past.to(self.device, copy=True), bytes(key.tolist())
            self._done, self._awaited, self._process = (step, None), None, process()
            self._digest = self._identify()

    def _keep(self) -> None:
        """Puts the last noise among the past ones; also where an interrupt came in between."""
        step, kept = self._done
        if kept is not None:
            if self.buffers.numel():
                self._past = kept
            elif len(self._past):
                self._past[(step - 1) % len(self._past)] = kept
            self._done = (step, None)

    def _draw(self, t: int) -> tuple[Tensor, Tensor]:
        """The noise of step t, and what is to be kept of it."""
        memory, row = len(self._past), self.coefficients[min(t, len(self.coefficients) - 1)]
        noise, last = torch.empty(self.size, dtype=self.dtype, device=self.device), self.first + self.size
        for block in range(self.first // AT_ONCE, -(-last // AT_ONCE)):
            start, stop = block * AT_ONCE, min((block + 1) * AT_ONCE, self.whole)
            key = self._key + t.to_bytes(8, "little") + block.to_bytes(8, "little")
            numbers = SeededNoise(int.from_bytes(key, "little"), self.device).normal((stop - start,)) * self.sigma
            mine, end = max(start, self.first), min(stop, last)
            noise[mine - self.first : end - self.first] = numbers[mine - start : end - start]
        if self.buffers.numel():
            return self._through_buffers(noise, row)
        seen = min(t, memory)
        if seen:
            slots = (t - 1 - torch.arange(seen, device=row.device)) % memory  # of steps t - 1, t - 2, ...
            weights = row.new_zeros(seen).scatter_(0, slots, row[1 : seen + 1]).to(self.dtype)
            with torch.autocast(noise.device.type, enabled=False):
                noise -= weights @ self._past[:seen]
        noise.div_(row[0])
        return noise, noise

    def _through_buffers(self, noise: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """D2^{-1} T^{-1} D1^{-1} z, and the running numbers after it: s <- s - (1 - zero) s + D1^{-1} z."""
        poles, zeros = self.buffers
        gains = residues(zeros, poles).to(self.dtype)
        noise.mul_(row[1] / row[0])
        kept = torch.addcmul(noise, self._past, (zeros - 1).to(self.dtype)[:, None]).add_(self._past)
        with torch.autocast(noise.device.type, enabled=False):
            return noise.add_(gains @ self._past).div_(row[1]), kept

    def _identify(self) -> bytes:
        numbers, known = (self.sigma, self.steps, self.whole, str(self.dtype)), self.coefficients.cpu()
        self._diagonal = known[:, 0].tolist()
        return hashlib.sha256(
            self._key
            + known.numpy().tobytes()
            + self.buffers.cpu().contiguous().numpy().tobytes()
            + repr(numbers).encode()
        ).digest()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "noise can not be copied or pickled: the copy would draw the same numbers, and their difference would "
            "publish data; move it by secret_state() and load_secret_state(), and use one of the two only"
        )


def _has_digits(dtype: torch.dtype, sigma: float, coefficients: Tensor) -> None:
    """Raises TypeError, ValueError unless the noise of each step is made of numbers with all their digits."""
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise must be float32 or float64, not {dtype}: fewer digits show through")
    low, high = 1e6 * torch.finfo(dtype).tiny, 1e-6 * torch.finfo(dtype).max
    least, most = float(coefficients[:, 0].min()), float(coefficients.abs().max())
    if not (low < min(sigma, least, sigma / most) and max(sigma, most, sigma / least) < high):
        raise ValueError(
            f"strategy and sigma = {sigma:.3g} leave ({low:.0e}, {high:.0e}), where {dtype} noise keeps "
            "its law; divide both by the strategy's largest entry, which changes nothing else"
        )
