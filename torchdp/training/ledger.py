"""A file that is told of each step of a run before its gradient is: what was spent is known after any kill."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ledger:
    """Lines of a file: the run's name, then each step that is spent. None of it is secret.

    path: None for no ledger. name: of run and plan. fresh: whether the run starts; its file must not exist
    (FileExistsError). Raises ValueError where the file is of another run.
    """

    path: Path | None
    name: str
    fresh: bool

    def __post_init__(self) -> None:
        if self.path and self.fresh:
            with self.path.open("x") as file:
                file.write(self.name + "\n")
        elif self.path and self.path.read_text().partition("\n")[0] != self.name:
            raise ValueError(f"ledger {self.path.name} is of another run, or of another plan")

    @property
    def step(self) -> int:
        """The last one that is spent; a line that a kill cut short, its gradient not yet out, is a smaller number."""
        steps = self.path.read_text().split()[1:] if self.path else []
        return max(map(int, steps), default=0)

    def record(self, step: int) -> None:
        """The step is spent, whatever comes: on the disk when this returns."""
        if self.path:
            with self.path.open("a") as file:
                file.write(f"{step}\n")
                file.flush()
                os.fsync(file.fileno())
