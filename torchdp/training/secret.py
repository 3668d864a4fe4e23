"""The source of a run's randomness: a key, and what is derived from it for each purpose."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training.mechanism import Mechanism
from torchdp.training.participation import OwnBatches
from torchdp.training.stream import octets

STATE = ("key", "past", "plan", "step")


@dataclass(frozen=True, repr=False)
class Secret:
    """The key of a run."""

    key: bytes

    def digest(self, purpose: bytes) -> bytes:
        """32 bytes."""
        return hashlib.sha256(self.key + purpose).digest()

    def generator(self, purpose: bytes, more: bytes = b"") -> torch.Generator:
        """For what is no noise."""
        return keyed_generator(self.digest(purpose) + more, "cpu")

    def noise(self, purpose: bytes, device: torch.device | str = "cpu") -> SeededNoise:
        """The cipher under a key of its own."""
        return SeededNoise(int.from_bytes(self.digest(purpose), "little"), device)

    def state(self, plan: Mechanism, step: int, past: Tensor) -> dict[str, Any]:
        """Numbers and tensors, which ``torch.load`` reads by default."""
        key, digest = (torch.tensor(list(part), dtype=torch.uint8) for part in (self.key, plan.digest()))
        return {"step": step, "key": key, "past": past, "plan": digest}


def opened(state: dict[str, Any], plan: Mechanism) -> tuple[Secret, dict[str, Any]]:
    """The key, and step and past, of a secret state of this plan. Raises TypeError, ValueError."""
    names = [*["attendance"] * isinstance(plan.sampling, OwnBatches), *["bound"] * bool(plan.adaptive), *STATE]
    if not isinstance(state, dict) or sorted(state, key=str) != names:
        raise ValueError(f"secret must be what Run.secret_state returns, a dict of {', '.join(names)}")
    key, digest = (octets(name, state[name]) for name in ("key", "plan"))
    if digest != plan.digest():
        raise ValueError("secret is of another plan: its noise is not the noise of this plan's guarantee")
    checks.integer("step", state["step"], 0, plan.strategy.steps)
    return Secret(key), {name: state[name] for name in names if name not in ("key", "plan")}
