"""Correlated Gaussian noise for training: the matrix mechanism, one step at a time.

A module with a state. Notation: C, G, W and Z as in :mod:`torchdp.training`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.factorization import StreamStrategy
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.training.participation import Participation, Sensitivity, sensitivity
from torchdp.training.strategy import Strategy, as_strategy
from torchdp.training.stream import Stream


class CorrelatedNoise(nn.Module):
    """Adds to step t's sum of clipped gradients row t of C^{-1} Z, Z of N(0, sigma^2) entries.

    w_t = (z_t - sum_{s<t} C_ts w_s) / C_tt, by forward substitution. A strategy with b bands keeps
    the last b - 1 noise vectors, (b - 1) x size numbers, and a dense one steps - 1 of them; C = I
    (independent noise) keeps none.

    Args:
        strategy: C, (steps, steps), lower triangular, its diagonal positive; or for any number of
            steps a :class:`StreamStrategy`: bands, buffers, which keep buffers x size numbers,
            buffers that draw rows of Z of earlier passes again, or a custom one.
        size: numbers in a gradient.
        sigma: standard deviation of Z's entries.
        noise: the 256 bits from which all of it is made come from here, for None from the system.
        dtype: of the noise, float32 or float64; ``.half()`` and others move the module and change
            no number.
        shard: (first, whole): of a gradient of ``whole`` numbers this is for those from ``first``
            on; each number has the noise that it has without shards.

    Raises TypeError, ValueError.

    The state dict holds the step, and nothing secret. ``secret_state`` holds the key and the past
    noise as well and resumes the stream on the same kind of device; it is as secret as the data,
    since with it the noise can be subtracted. A stream is spent once: two copies that are given
    different gradients publish their difference without noise. Copies and pickles are refused, so
    is going back, and so is a forked child; whoever loads one secret state twice must release the
    outputs of one of the two only. An interrupted step is either spent or not begun.

    Several processes (a group of torch.distributed): all of them make the module, the key is
    process 0's, and each step raises RuntimeError where steps, strategies or sums differ. Add up
    the sums over all processes first. With shards the sums are not compared, and a process keeps
    and draws its own part. Threads take turns. ``torch.compile`` breaks its graph here and runs it
    as it is; vmap, tracing and CUDA graphs are refused, since one noise would serve several sums;
    autocast does not touch it.

    Guarantees: the noise of all steps together has covariance sigma^2 (C^T C)^{-1} in each
    coordinate.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022); banded strategies: Choquette-Choo et al.
    (2023).
    """

    def __init__(
        self,
        strategy: Strategy,
        size: int,
        sigma: float,
        *,
        noise: Noise | None = None,
        dtype: torch.dtype = torch.float32,
        shard: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        size = checks.integer("size", size, 1)
        sigma = checks.positive("sigma", sigma)
        first, whole = shard or (0, size)
        first = checks.integer("shard", first, 0)
        whole = checks.integer("shard", whole, first + size)
        self._strategy = as_strategy(strategy)
        key = source(noise).words((4,)).cpu().numpy().tobytes()
        part = first, size, whole
        self._stream = Stream(self._strategy.recurrence, part, sigma, key, dtype, shard is not None)

    @property
    def sigma(self) -> float:
        """Standard deviation of Z's entries."""
        return self._stream.sigma

    @property
    def size(self) -> int:
        """Numbers of its part of a gradient."""
        return self._stream.size

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self._stream.step

    @property
    def steps(self) -> int:
        """How many sums the strategy serves."""
        return self._stream.steps

    @property
    def strategy(self) -> StreamStrategy:
        """C."""
        return self._strategy

    def guarantee(
        self,
        bound: float,
        delta: float,
        participation: Participation,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
    ) -> Guarantee:
        """The guarantee of the outputs of all steps.

        The gradients of a step may depend on all earlier outputs.

        Args:
            bound: largest norm of a user's part of one sum.
            delta: of the guarantee.
            participation: which steps a user may enter.
            neighbours: ADD_REMOVE: the user's parts are there or 0, the other users' steps stay.

        Raises TypeError, ValueError, as ``sensitivity`` and ``gaussian_guarantee`` do.

        Guarantees: (epsilon, delta)-DP; exact where the sensitivity is.
        Source: Denisov et al. (2022), Theorem 2.1 (adaptivity); Balle, Wang (2018), Theorem 8.
        """
        return noise_guarantee(self.strategy, self.sigma, bound, delta, participation, neighbours)

    def secret_state(self) -> dict[str, Any]:
        """The whole state, for ``torch.save``: key, step, past noise and its kind.

        As secret as the data.
        """
        return self._stream.secret_state()

    def load_secret_state(self, state: dict[str, Any]) -> None:
        """Goes on where ``secret_state`` was taken, by noise of this strategy, sigma and dtype.

        Of another: ValueError. A state of this stream from an earlier step is refused: its noise
        would be drawn twice. Raises TypeError too.
        """
        self._stream.load_secret_state(state)

    def skip(self, step: int) -> None:
        """Skips all steps before ``step``.

        Their noise is drawn, as later noise depends on it, but never released. Takes the time of so
        many steps, or none if the noise is independent. Raises ValueError.
        """
        self._stream.skip(step)

    def get_extra_state(self) -> dict[str, int]:
        """What the state dict holds: the step."""
        return {"step": self.step}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """From a state dict.

        Where the step is not this one's, no noise is drawn before ``load_secret_state``.
        """
        if not isinstance(state, dict) or set(state) != {"step"}:
            raise ValueError(
                "the state dict of CorrelatedNoise must be {'step': ...}, as state_dict() returns it"
            )
        self._stream.expect(checks.integer("step", state["step"], 0))

    def forward(self, total: Tensor) -> Tensor:
        """The next private sum: (size,) -> (size,), in the noise's dtype; ``step`` goes up by one.

        total: the sum of this step's clipped gradients (:func:`clip_and_sum`). Raises TypeError and
        ValueError on another shape or device, on entries that are not finite or so large that their
        rounding would swallow the noise, and RuntimeError after the last step, before any noise is
        spent. Entries on a GPU are not waited for: where they are refused, this output and all
        later ones are NaN, and a later step raises the ValueError.
        """
        # In a compiled graph the noise of one step would be a constant.
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(self._next)(total)
        return self._next(total)

    @torch.no_grad()
    def _next(self, total: Tensor) -> Tensor:
        size = self._stream.size
        device = self._stream.device
        if checks.instance("total", total, Tensor).shape != (size,):
            raise ValueError(f"total must be a tensor of shape ({size},), one flat gradient")
        if _recorded(total):
            raise RuntimeError(
                "CorrelatedNoise cannot run inside vmap, torch.func, a trace or a CUDA graph: one "
                "noise would serve several sums"
            )
        checks.beside("total", total, "the noise", device)
        total = checks.real("total", total).to(self._stream.dtype)
        # A GPU is not waited for: there the stream judges the sum.
        if device.type == "cpu":
            checks.floating("total", total)
        return self._stream.next(total)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CorrelatedNoise":
        # Where ``fn`` puts tensors; whole numbers, since dtypes do not change.
        moved = fn(torch.zeros((), dtype=torch.int64, device=self._stream.device))
        self._stream.move(moved.device)
        super()._apply(fn, recurse)
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._stream.__reduce_ex__(protocol)


def _recorded(total: Tensor) -> bool:
    """Whether the step would be written down and repeated, or runs on what is no number."""
    # A subclass may hold no numbers, as a fake tensor.
    if type(total) not in (Tensor, nn.Parameter):
        return True
    if torch._C._functorch.is_functorch_wrapped_tensor(total) or torch.jit.is_tracing():
        return True
    # Modes that see each operation, as of make_fx.
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return total.is_cuda and torch.cuda.is_current_stream_capturing()


def calibrated_noise(
    strategy: Strategy,
    size: int,
    *,
    bound: float,
    epsilon: float,
    delta: float,
    participation: Participation,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    noise: Noise | None = None,
    dtype: torch.dtype = torch.float32,
) -> CorrelatedNoise:
    """:class:`CorrelatedNoise` of the least sigma that makes all outputs (epsilon, delta)-DP.

    The least where batches are not sampled at random: amplification by sampling is not counted.
    Where it could be, as for Poisson batches and small epsilon, plain DP-SGD with independent noise
    may need less.

    Args:
        strategy: C.
        size: numbers in a gradient.
        bound: largest norm of a user's part of one sum (the clipping bound).
        epsilon: of all outputs together.
        delta: likewise.
        participation: which steps a user may enter.
        neighbours: what of two data sets may differ.
        noise: as of :class:`CorrelatedNoise`.
        dtype: likewise.

    Raises TypeError, ValueError.

    Guarantees: ``guarantee(bound, delta, participation, neighbours).epsilon`` <= epsilon.
    Source: Denisov et al. (2022), Theorem 2.1; Balle, Wang (2018), Theorem 8.
    """
    moved = _scaled(strategy, bound, participation, neighbours)
    sigma = gaussian_sigma(epsilon, delta, moved.value)
    return CorrelatedNoise(strategy, size, sigma, noise=noise, dtype=dtype)


def noise_guarantee(
    C: Strategy,
    sigma: float,
    bound: float,
    delta: float,
    participation: Participation,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
) -> Guarantee:
    """As :meth:`CorrelatedNoise.guarantee`, of any strategy and sigma."""
    moved = _scaled(C, bound, participation, neighbours)
    guarantee = gaussian_guarantee(sigma, delta, moved.value, Model.CENTRAL, neighbours)
    source = f"{guarantee.source}; Denisov et al. (2022), Theorem 2.1"
    # The curve is exact for what a user moves, which may itself be a bound.
    return replace(guarantee, exact=guarantee.exact and moved.exact, source=source)


def _scaled(
    C: Strategy, bound: float, participation: Participation, neighbours: Neighbours
) -> Sensitivity:
    """The sensitivity in the gradients' units: replacing a user moves a sum by twice the bound."""
    bound = checks.positive("bound", bound)
    checks.instance("neighbours", neighbours, Neighbours)
    unit = sensitivity(C, participation)
    factor = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return Sensitivity(factor * bound * unit.value, factor * bound * unit.attained)
