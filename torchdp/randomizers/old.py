# mypy: disable-error-code="arg-type, attr-defined, no-untyped-def, no-any-return"
"""The verbs from before protocols: they go as soon as nobody calls them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.protocol import Crowd, Tally


class LocalRandomizer:
    """Either kind."""


class OldOracle(LocalRandomizer):
    """Of types."""

    @property
    def bits(self) -> int:
        return self.bits_per_user

    @property
    def tallies(self) -> int:
        return len(self.old_reports(self.empty))

    def old_reports(self, tally: Tally) -> Tensor:
        reports = tally["reports"]
        if hasattr(self, "gap"):
            reports = torch.cat([reports, torch.full_like(reports[..., :1], tally.n)], -1)
        return reports

    def sample(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        x = checks.indices("x", x, self.k)
        return self.speak(x, source(noise, x.device))

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        return self.speak(x, draws)

    def old_collect(self, x: Tensor, noise: Noise | None) -> Tensor:
        return self.old_reports(self.hear(checks.indices("x", x, self.k), source(noise, x.device)))

    def decode_counts(self, reports: Tensor) -> Tensor:
        reports = checks.floating("reports", reports).double()
        if reports.ndim == 0 or reports.shape[-1] != self.tallies:
            raise ValueError(f"reports must have shape (..., {self.tallies}), not {tuple(reports.shape)}")
        users = reports[..., -1:] if hasattr(self, "gap") else reports.sum(-1, keepdim=True)
        return self.totals(Tally(users, {"reports": reports[..., : len(self.empty["reports"])]}))

    def answer(self, reports: Tensor, W: Tensor) -> Tensor:
        users = reports[..., -1:] if hasattr(self, "gap") else reports.sum(-1, keepdim=True)
        return self.answers(Tally(users, {"reports": reports[..., : len(self.empty["reports"])]}), W)

    def sample_reports(self, counts, *, generator, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.old_reports(self.sample_tally(counts, generator=generator, sample_shape=sample_shape))


class OldBall(LocalRandomizer):
    """Of a ball."""

    @property
    def bits(self) -> int:
        return self.bits_per_user

    def sample(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        x = self._inside("x", x)
        return self.speak(x, source(noise, x.device))

    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        return self.speak(x, draws)

    def decode_sum(self, messages: Tensor) -> Tensor:
        messages = checks.real("messages", messages)
        if messages.ndim < 2 or messages.shape[-1] != self.dim:
            raise ValueError(f"messages must have shape (..., users, {self.dim}), not {tuple(messages.shape)}")
        return checks.floating("messages", messages.sum(-2, dtype=torch.float64))

    def sample_sum(self, points, counts, *, generator, sample_shape: Sequence[int] = ()) -> Tensor:
        crowd = Crowd(points, counts)
        return self.sample_tally(crowd, generator=generator, sample_shape=sample_shape)["sum"]
