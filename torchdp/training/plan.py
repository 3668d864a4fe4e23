"""One plan of a private training run: its guarantee, saving and loading it, and runs of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.description import described, made
from torchdp.noise import Noise, source
from torchdp.training.mechanism import AdaptiveBound, Mechanism
from torchdp.training.run import Run

# of files that save writes, with a version that a change of their content raises
FORMAT = "torchdp plan"
VERSION = 1
# whose classes a file may make
ROOMS = ("torchdp.training", "torchdp.factorization", "torchdp.privacy")


class Clipping(TypedDict, total=False):
    """How a run clips, as :func:`clip_and_sum` does; at_once None for its own number."""

    at_once: int | None
    routes: Sequence[str]
    unused: Sequence[str]
    groups: Mapping[str, float] | None


@dataclass(frozen=True)
class Plan(Mechanism):
    """Sampling, clipping, strategy and noise that belong together, their joint guarantee, and their
    error.

    standard_errors: of each row of W (G + C^{-1} Z), (queries,), in the gradients' units. Made by
    :func:`choose`; the rest is said at :class:`Mechanism`.
    """

    standard_errors: Tensor

    def start(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        noise: Noise | None = None,
        ledger: str | Path | None = None,
        **clipping: Unpack[Clipping],
    ) -> Run:
        """A run of this plan, spent once.

        noise: 256 bits of which sampling and noise are a function come from here, for None from the
        system. ledger: a file that does not exist yet; it records each step before its gradient is
        released. module: in a group of processes a copy in each. clipping: at_once, routes, unused
        and groups of :func:`clip_and_sum`. Raises TypeError, ValueError.
        """
        return Run(self, module, loss, source(noise), step=0, ledger=ledger, **clipping)

    def resume(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        secret: dict[str, Any],
        *,
        step: int | Mapping[str, Any] | None = None,
        ledger: str | Path | None = None,
        **clipping: Unpack[Clipping],
    ) -> Run:
        """The run of which ``secret`` is :meth:`Run.secret_state`, from the first step on that may
        not have been seen.

        That is the latest of the secret state's, of ``step`` (:meth:`Run.state_dict`, or its
        number) and of the ledger's. Steps in between are lost: their noise is drawn, as later noise
        needs it, and answers no other sum. Without a ledger ``step`` must say how many steps may
        have been released. An adaptive bound is the last that these know; a number knows none. The
        model may be an older one. Raises ValueError, where neither is given, and where the secret
        state or the ledger is of another plan too.

        Guarantees: the gradients of all steps, before and after, have ``guarantee``, where one run
        alone goes on, or those that do have one ledger.
        """
        if step is None and ledger is None:
            raise ValueError(
                "step or ledger must say what was released, or a step could be again, with the same noise on another "
                "sum: pass step= of a state_dict() that was kept at each step, or the run's ledger="
            )
        step = 0 if step is None else step
        return Run(self, module, loss, secret, step=step, ledger=ledger, **clipping)

    def adapted(self, bound: AdaptiveBound) -> "Plan":
        """This plan, its guarantee too, with a clipping bound that follows gradients' norms. Raises
        TypeError.
        """
        return replace(self, adaptive=checks.instance("bound", bound, AdaptiveBound))

    def save(self, path: str | Path) -> None:
        """Into a file that :meth:`load` reads, to the last digit. Raises TypeError for a custom
        strategy.
        """
        for kind in map(type, (self.strategy, getattr(self.sampling, "rule", self.sampling))):
            if kind.__module__.partition(".")[0] != "torchdp":
                raise TypeError(
                    f"a file can not hold a {kind.__name__}, whose code is one's own; make the plan again from what "
                    "made it, or take Tabulated(strategy.recurrence) for its strategy"
                )
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for each in fields(self):
            content[each.name] = described(getattr(self, each.name), name=each.name)
        torch.save(content, path)

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """The plan of a file, by ``torch.load``'s default: nothing in the file is run.

        Raises ValueError where it is no plan's, and where its noise does not give its guarantee,
        which is computed anew.
        """
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            kind = found.pop("format", "no format")
            version = found.pop("version", "no version")
            if (kind, version) != (FORMAT, VERSION):
                raise ValueError(
                    f"its format is {kind!r}, version {version!r}, and this release reads {FORMAT!r}, version "
                    f"{VERSION}; load it by the release that wrote it, or choose the plan again"
                )
            plan = made(
                {"made": f"{Plan.__module__}:{Plan.__qualname__}", "of": found}, Plan, rooms=ROOMS
            )
            checks.positive("sigma", plan.sigma)
            checks.integer("batch", plan.batch, 1, checks.integer("users", plan.users, 1))
            checks.floating("standard_errors", plan.standard_errors)
            computed = plan.computed(plan.strategy.steps)
        except OSError:
            raise
        except Exception as error:  # of whatever kind: the file is anybody's
            raise ValueError(f"{Path(path).name} is not what Plan.save writes: {error}") from error
        if not computed.epsilon <= plan.guarantee.epsilon * (1 + 1e-9):
            raise ValueError(f"{Path(path).name} promises {plan.guarantee}, its noise {computed}")
        return replace(plan, guarantee=computed)
