"""What survives a kill: a run's key, with what is derived from it, and the ledger of the steps that
are spent.

The ledger is a file that records each step before its gradient is released.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
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
        key, digest = (
            torch.tensor(list(part), dtype=torch.uint8) for part in (self.key, plan.digest())
        )
        return {"step": step, "key": key, "past": past, "plan": digest}


def opened(state: dict[str, Any], plan: Mechanism) -> tuple[Secret, dict[str, Any]]:
    """The key, and step and past, of a secret state of this plan. Raises TypeError, ValueError."""
    names = [
        *["attendance"] * isinstance(plan.sampling, OwnBatches),
        *["bound"] * bool(plan.adaptive),
        *STATE,
    ]
    if not isinstance(state, dict) or sorted(state, key=str) != names:
        raise ValueError(
            f"secret must be what Run.secret_state returns, a dict of {', '.join(names)}"
        )
    key, digest = (octets(name, state[name]) for name in ("key", "plan"))
    if digest != plan.digest():
        raise ValueError(
            "secret is of another plan: its noise is not the noise of this plan's guarantee"
        )
    checks.integer("step", state["step"], 0, plan.strategy.steps)
    return Secret(key), {name: state[name] for name in names if name not in ("key", "plan")}


class Ledger:
    """Lines of a file: the run's name, then each step that is spent and who spent it. None of it is
    secret.

    path: None for no ledger. name: of run and plan. fresh: whether the run starts; its file must
    not exist (FileExistsError). step: the last one that is spent; of a line that a kill cut short,
    its gradient not yet out, the number may be a smaller one. bounds: steps, and the clipping
    bounds noted after them. Raises ValueError where the file is of another run, or damaged.
    """

    def __init__(self, path: Path | None, name: str, fresh: bool) -> None:
        self.step, self._path, self._read = 0, path, 0
        self._self, self._lost, self.bounds = os.urandom(8).hex(), False, list[tuple[int, float]]()
        if path and fresh:
            with path.open("x") as file:
                file.write(name)
        if path:
            first, *lines = self._news(path) or [""]
            if first != name:
                raise ValueError(f"ledger {path.name} is of another run, or of another plan")
            steps = [line.partition(" ")[0] for line in lines]
            if not all(map(str.isdecimal, steps)):
                raise ValueError(
                    f"ledger {path.name} is damaged, a line begins without a step; mend it by hand"
                )
            self.step = max(map(int, steps), default=0)
            # of a line that was cut short no bound is read
            noted = [line.split() for line in lines]
            self.bounds = [(int(found[0]), float(found[1])) for found in noted if len(found) == 3]

    def record(self, step: int, bound: float | None = None) -> None:
        """The step is spent, whatever comes: on the disk when this returns. Nothing new where it is
        this run's last.

        bound: the clipping bound after the step, once that is recorded. Raises RuntimeError where
        another run with this ledger has spent the step, and then for every step.
        """
        if self._path and not self._lost:
            # a new line first: one that was cut short stays what it is
            with self._path.open("ab") as file:
                line = (
                    f"\n{step} {self._self}"
                    if bound is None
                    else f"\n{step} {bound!r} {self._self}"
                )
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            news = self._news(self._path) if bound is None else []
            told = [(line.partition(" ")[0], line.rpartition(" ")[2]) for line in news]
            self._lost = any(number == str(step) and who != self._self for number, who in told)
        if self._path and self._lost:
            raise RuntimeError(
                f"ledger {self._path.name}: another run has spent step {step}, and one noise would serve two sums; let "
                "one run alone go on; in a group give each process a ledger of its own"
            )

    def _news(self, path: Path) -> list[str]:
        """The lines since the last look."""
        with path.open("rb") as file:
            file.seek(self._read)
            found = file.read()
        self._read += len(found)
        return [line for line in found.decode(errors="replace").splitlines() if line]
