"""Correlated Gaussian noise for training: the matrix mechanism, one step at a time, as a module with a state."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.training.participation import Participation, Sensitivity, sensitivity
from torchdp.training.strategy import _lower

KEY = 32  # bytes; the whole stream of noise is a function of them


class CorrelatedNoise(nn.Module):
    """Adds to the sum of clipped gradients of step t row t of C^{-1} Z, Z of N(0, sigma^2) entries: W (G + C^{-1} Z).

    w_t = (z_t - sum_{s<t} C_ts w_s) / C_tt, by forward substitution. A strategy with b bands keeps the last b - 1 noise
    vectors, (b - 1) x size numbers, and a dense one steps - 1 of them; C = I (independent noise) keeps none.

    strategy: C, (steps, steps), lower triangular, its diagonal positive. size: numbers in a gradient. sigma: standard
    deviation of Z's entries. generator: draws the 256 bits from which all noise is made (``system_generator`` for real
    data). dtype: of the noise, float32 or float64. Raises TypeError, ValueError.

    Everything is a buffer: the state dict holds strategy, sigma, the step, the past noise and the key, and resumes the
    stream exactly on the same kind of device. It is as secret as the data: with it the noise can be subtracted.
    A stream is spent once. Two copies (deepcopy, or a checkpoint resumed twice) that are given different gradients
    publish their difference without noise: release the outputs of one of them only.
    Several processes: add up the sums over all of them first, and give each process a copy of this module; the copies
    draw the same noise. ``torch.compile`` breaks its graph here and runs it as it is; vmap is refused, since one noise
    would serve several sums; autocast does not touch it.

    Guarantees: the noise of all steps together has covariance sigma^2 (C^T C)^{-1} in each coordinate.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022); banded strategies: Choquette-Choo et al. (2023).
    """

    coefficients: Tensor
    sigma: Tensor
    past: Tensor
    step: Tensor
    key: Tensor

    def __init__(
        self,
        strategy: Tensor,
        size: int,
        sigma: float,
        *,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        C, size = _lower("strategy", strategy), checks.integer("size", size, 1)
        sigma = checks.positive("sigma", sigma)
        _noise_dtype(dtype)
        if not (C.diagonal() > 0).all():
            raise ValueError("strategy must have a positive diagonal; multiply rows by -1 where it is negative")
        checks.random_source(generator, C.device)
        row, column = C.nonzero().unbind(1)
        bands = int((row - column).max()) + 1
        place = torch.arange(len(C), device=C.device)[:, None] - torch.arange(bands, device=C.device)
        coefficients = torch.where(place >= 0, C.gather(1, place.clamp_min(0)), 0.0)  # [t, j] = C[t, t - j]
        key = torch.randint(0, 256, (KEY,), dtype=torch.uint8, device=C.device, generator=generator)
        self.register_buffer("coefficients", coefficients)
        self.register_buffer("sigma", torch.tensor(sigma, dtype=torch.float64, device=C.device))
        self.register_buffer("past", torch.zeros(bands - 1, size, dtype=dtype, device=C.device))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=C.device))
        self.register_buffer("key", key)

    @property
    def steps(self) -> int:
        """How many sums the strategy serves."""
        return len(self.coefficients)

    @property
    def strategy(self) -> Tensor:
        """C, (steps, steps)."""
        steps, bands = self.coefficients.shape
        place = torch.arange(steps, device=self.coefficients.device)[:, None]
        place = place - torch.arange(bands, device=self.coefficients.device)
        C = torch.zeros(steps, steps, dtype=self.coefficients.dtype, device=self.coefficients.device)
        return C.scatter_add_(1, place.clamp_min(0), self.coefficients)  # what lies before the start is 0

    def guarantee(
        self,
        bound: float,
        delta: float,
        participation: Participation,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
    ) -> Guarantee:
        """What the outputs of all steps promise where each user's part of a sum has norm at most ``bound``.

        The gradients of a step may depend on all earlier outputs. ADD_REMOVE: the user's parts are there or 0, the
        other users' steps stay. Raises TypeError, ValueError, as ``sensitivity`` and ``gaussian_guarantee`` do.

        Guarantees: (epsilon, delta)-DP; exact where the sensitivity is.
        Source: Denisov et al. (2022), Theorem 2.1 (adaptivity); Balle, Wang (2018), Theorem 8.
        """
        found = _scaled(self.strategy, bound, participation, neighbours)
        result = gaussian_guarantee(float(self.sigma), delta, found.value, Model.CENTRAL, neighbours)
        source = f"{result.source}; Denisov et al. (2022), Theorem 2.1"
        return replace(result, exact=found.exact, source=source)

    @torch.no_grad()
    def forward(self, total: Tensor) -> Tensor:
        """The next private sum: (size,) -> (size,), in the noise's dtype; ``step`` goes up by one.

        total: the sum of this step's clipped gradients (:func:`clip_and_sum`). Raises TypeError and ValueError on
        another shape or device or on entries that are not finite, and RuntimeError after the last step, before any
        noise is spent.
        """
        size = self.past.shape[1]
        if not isinstance(total, Tensor) or total.shape != (size,):
            raise ValueError(f"total must be a tensor of shape ({size},), one flat gradient")
        if torch._C._functorch.is_functorch_wrapped_tensor(total):
            raise RuntimeError(
                "CorrelatedNoise cannot run inside vmap or torch.func: one noise would serve several sums"
            )
        if total.device != self.past.device:
            raise ValueError(f"total is on {total.device}, the noise on {self.past.device}; move one of them")
        total = checks.floating("total", total)
        return total.to(self.past.dtype) + self._next()

    def _next(self) -> Tensor:
        _noise_dtype(self.past.dtype)
        t, memory = int(self.step), len(self.past)
        if t >= self.steps:
            raise RuntimeError(f"all {self.steps} steps of the strategy are spent; make one for more steps")
        key = bytes(self.key.tolist()) + t.to_bytes(8, "little")
        generator = keyed_generator(key, self.past.device)
        noise = torch.randn(
            self.past.shape[1], dtype=self.past.dtype, device=self.past.device, generator=generator
        )
        row = self.coefficients[t].to(self.past.dtype)
        noise *= self.sigma.to(noise.dtype)
        seen = min(t, memory)
        if seen:
            slots = (t - 1 - torch.arange(seen, device=row.device)) % memory  # of steps t - 1, t - 2, ...
            weights = row.new_zeros(seen).scatter_(0, slots, row[1 : seen + 1])
            with torch.autocast(noise.device.type, enabled=False):
                noise -= weights @ self.past[:seen]
        noise /= row[0]
        if memory:
            self.past[t % memory] = noise
        self.step += 1
        return noise


def calibrated_noise(
    strategy: Tensor,
    size: int,
    *,
    bound: float,
    epsilon: float,
    delta: float,
    participation: Participation,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> CorrelatedNoise:
    """:class:`CorrelatedNoise` with the least sigma that makes all outputs together (epsilon, delta)-DP.

    bound: largest norm of a user's part of one sum (the clipping bound). Raises TypeError, ValueError.

    Guarantees: ``guarantee(bound, delta, participation, neighbours).epsilon`` <= epsilon.
    Source: Denisov et al. (2022), Theorem 2.1; Balle, Wang (2018), Theorem 8.
    """
    C = _lower("strategy", strategy)
    found = _scaled(C, bound, participation, neighbours)
    sigma = gaussian_sigma(epsilon, delta, found.value) * (1 + 1e-11)  # ``guarantee`` finds epsilon to rounding
    return CorrelatedNoise(C, size, sigma, generator=generator, dtype=dtype)


def _scaled(C: Tensor, bound: float, participation: Participation, neighbours: Neighbours) -> Sensitivity:
    """The sensitivity in the gradients' units: replacing a user moves a sum by twice the bound."""
    bound = checks.positive("bound", bound)
    if not isinstance(neighbours, Neighbours):
        raise TypeError("neighbours must be a Neighbours")
    found = sensitivity(C, participation)
    factor = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return Sensitivity(factor * bound * found.value, factor * bound * found.attained)


def _noise_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise must be float32 or float64, not {dtype}: fewer digits show through; call .float()")
