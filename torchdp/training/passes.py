"""A run's batches as a training framework asks for them, and what it must not do with a run."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import Dataset

from torchdp import checks
from torchdp.training.plan import Run

PARTS = "a step's batch is the plan's, and the run splits it by itself"
SEVERAL = "over several processes write your own loop, see Run"
BEHIND = (
    "the checkpoint is at step {}, the run at {}; plan.resume(model, loss, secret, ledger=...) "
    "goes on with the run that it is of, and a new run begins with a new trainer"
)


class Passes:
    """The batches of a run, read ahead: in each iteration those of one pass, until all are spent.

    In the place of a ``DataLoader`` where a framework loops over epochs. A pass over the users is
    users / batch steps; an iteration that begins in the midst of one, as after a kill, goes to its
    end. Each batch must be used before the next one, as with :meth:`Run.loader`.

    Args:
        run: whose batches these are.
        data: one row for each of the plan's users.
        options: of ``DataLoader``, as :meth:`Run.loader` takes them, but for ``max_rows``.

    Raises TypeError, ValueError; an iteration raises what :meth:`Run.loader` raises.
    """

    def __init__(self, run: Run, data: Dataset[Any], **options: Any) -> None:
        if "max_rows" in options:
            raise ValueError(
                f"max_rows must be left out: {PARTS}, where memory is short by "
                "plan.start(..., at_once=); your own loop takes parts of a batch, see Run.loader"
            )
        self.run = checks.instance("run", run, Run)
        self.dataset = data
        self.options = options

    def __len__(self) -> int:
        plan = self.run.plan
        return min(plan.strategy.steps, plan.users // plan.batch)

    def __iter__(self) -> Iterator[Any]:
        # The rest of the pass that the run is in.
        left = len(self) - self.run.step % len(self)
        yield from islice(self.run.loader(self.dataset, **self.options), left)
