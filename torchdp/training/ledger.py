"""A file that records each step of a run before its gradient is released: the spent budget survives any kill."""

import os
from pathlib import Path


class Ledger:
    """Lines of a file: the run's name, then each step that is spent and who spent it. None of it is secret.

    path: None for no ledger. name: of run and plan. fresh: whether the run starts; its file must not exist
    (FileExistsError). step: the last one that is spent; of a line that a kill cut short, its gradient not yet out, the
    number may be a smaller one. bounds: steps, and the clipping bounds noted after them. Raises ValueError where the
    file is of another run, or damaged.
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
                raise ValueError(f"ledger {path.name} is damaged, a line begins without a step; mend it by hand")
            self.step = max(map(int, steps), default=0)
            noted = [line.split() for line in lines]  # of a line that was cut short no bound is read
            self.bounds = [(int(found[0]), float(found[1])) for found in noted if len(found) == 3]

    def record(self, step: int, bound: float | None = None) -> None:
        """The step is spent, whatever comes: on the disk when this returns. Nothing new where it is this run's last.

        bound: the clipping bound after the step, once that is recorded. Raises RuntimeError where another run with this
        ledger has spent the step, and then for every step.
        """
        if self._path and not self._lost:
            with self._path.open("ab") as file:  # a new line first: one that was cut short stays what it is
                line = f"\n{step} {self._self}" if bound is None else f"\n{step} {bound!r} {self._self}"
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
