"""What survives a kill: a run's key, and the ledger of the steps that are spent.

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
from torchdp.training.stream import octets, tensor_of

STATE = ("key", "past", "plan", "step")


@dataclass(frozen=True, repr=False)
class Secret:
    """The key of a run."""

    key: bytes

    def digest(self, purpose: bytes) -> bytes:
        """32 bytes."""
        # Keys have one length: no two purposes have one input.
        return hashlib.sha256(self.key + purpose).digest()

    def generator(self, purpose: bytes, more: bytes = b"") -> torch.Generator:
        """For what is no noise."""
        return keyed_generator(self.digest(purpose) + more, "cpu")

    def noise(self, purpose: bytes, device: torch.device | str = "cpu") -> SeededNoise:
        """The cipher under a key of its own."""
        return SeededNoise(int.from_bytes(self.digest(purpose), "little"), device)

    def state(self, plan: Mechanism, step: int, past: Tensor) -> dict[str, Any]:
        """Numbers and tensors, which ``torch.load`` reads by default."""
        return {
            "step": step,
            "key": tensor_of(self.key),
            "past": past,
            "plan": tensor_of(plan.digest()),
        }


def opened(state: dict[str, Any], plan: Mechanism) -> tuple[Secret, dict[str, Any]]:
    """The key, and step and past, of a secret state of this plan. Raises TypeError, ValueError."""
    names = list(STATE)
    if isinstance(plan.sampling, OwnBatches):
        names.append("attendance")
    if plan.adaptive:
        names.append("bound")
    if not isinstance(state, dict) or set(state) != set(names):
        raise ValueError(
            f"secret must be what Run.secret_state returns, a dict of {', '.join(sorted(names))}"
        )
    key = octets("key", state["key"])
    if octets("plan", state["plan"]) != plan.digest():
        raise ValueError(
            "secret is of another plan: its noise is not the noise of this plan's guarantee"
        )
    checks.integer("step", state["step"], 0, plan.strategy.steps)
    return Secret(key), {name: state[name] for name in names if name not in ("key", "plan")}


class Ledger:
    """Lines of a file: the run's name, then each step that is spent and who spent it.

    None of it is secret. ``step``: the last one that is spent; of a line that a kill cut short, its
    gradient not yet out, the number may be a smaller one. ``bounds``: steps, and the clipping
    bounds noted after them.

    Args:
        path: None for no ledger.
        name: of run and plan.
        fresh: whether the run starts; its file must not exist (FileExistsError).

    Raises ValueError where the file is of another run, or damaged.
    """

    def __init__(self, path: Path | None, name: str, fresh: bool) -> None:
        self.step = 0
        self.bounds: list[tuple[int, float]] = []
        self._path = path
        self._read = 0  # bytes of the file
        # Not of the key: two runs of one secret state must differ.
        self._self = os.urandom(8).hex()
        self._lost = False  # whether another run has spent a step of this one's
        if path is None:
            return
        if fresh:
            with path.open("x") as file:
                file.write(name)
        first, *lines = self._news(path) or [""]
        if first != name:
            raise ValueError(f"ledger {path.name} is of another run, or of another plan")
        steps = [line.partition(" ")[0] for line in lines]
        if not all(map(str.isdecimal, steps)):
            raise ValueError(
                f"ledger {path.name} is damaged, a line begins without a step; mend it by hand"
            )
        self.step = max(map(int, steps), default=0)
        for line in lines:
            words = line.split()
            if len(words) == 3:  # of a line that was cut short no bound is read
                self.bounds.append((int(words[0]), float(words[1])))

    def record(self, step: int, bound: float | None = None) -> None:
        """The step is spent, whatever comes: on the disk when this returns.

        Nothing new where it is this run's last. Raises RuntimeError where another run with this
        ledger has spent the step, and then for every step.

        Args:
            step: its number, from 1 on.
            bound: the clipping bound after the step, once that is recorded.
        """
        path = self._path
        if path is None:
            return
        if not self._lost:
            # A new line first: one that was cut short stays what it is.
            line = f"\n{step} {self._self}"
            if bound is not None:
                # By repr: what is read back is the same float.
                line = f"\n{step} {bound!r} {self._self}"
            with path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            # After the line is out: of two runs that write at once, one at least sees the other's.
            for news in self._news(path) if bound is None else ():
                number = news.partition(" ")[0]
                who = news.rpartition(" ")[2]
                self._lost |= number == str(step) and who != self._self
        if self._lost:
            raise RuntimeError(
                f"ledger {path.name}: another run has spent step {step}, and one noise would serve "
                "two sums; let one run alone go on"
            )

    def _news(self, path: Path) -> list[str]:
        """The lines since the last look."""
        # From the last look on: a ledger of a million steps is not read at each.
        with path.open("rb") as file:
            file.seek(self._read)
            news = file.read()
        self._read += len(news)
        return [line for line in news.decode(errors="replace").splitlines() if line]
