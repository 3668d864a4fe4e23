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

# Of files that save writes, with a version that a change of their content raises.
FORMAT = "torchdp plan"
VERSION = 1

# By how much a guarantee that is computed anew may be larger: rounding.
ROUNDING = 1e-9

# Whose classes a file may make.
PACKAGES = ("torchdp.training", "torchdp.factorization", "torchdp.privacy")


class Clipping(TypedDict, total=False):
    """How a run clips, as :func:`clip_and_sum` does; None for its own number."""

    at_once: int | None
    memory: int | None
    routes: Sequence[str]
    unused: Sequence[str]
    groups: Mapping[str, float] | None


@dataclass(frozen=True)
class Plan(Mechanism):
    """Sampling, clipping, strategy and noise, their joint guarantee, and their error.

    Made by :func:`choose`.

    Args:
        standard_errors: of each row of W (G + C^{-1} Z), (queries,), in the gradients' units; the
            other ones are those of :class:`Mechanism`.
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

        Args:
            module: in a group of processes a copy in each.
            loss: as of :func:`clip_and_sum`.
            noise: 256 bits of which sampling and noise are a function come from here, for None from
                the system.
            ledger: a file that does not exist yet; it records each step before its gradient is
                released. In a group of processes each has its own: process k > 0 adds ".k" to the
                name.
            clipping: at_once, memory, routes, unused and groups of :func:`clip_and_sum`.

        Raises TypeError, ValueError.
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
        """The run of which ``secret`` is :meth:`Run.secret_state`, from its first step not seen on.

        That is the latest of the secret state's, of ``step`` and of the ledger's. Steps in between
        are lost: their noise is drawn, as later noise needs it, and answers no other sum. An
        adaptive bound is the last that these know; a number knows none.

        Args:
            module: the model, which may be an older one.
            loss: as of ``start``.
            secret: of the run that was killed.
            step: :meth:`Run.state_dict`, or its number: how many steps may have been released.
                Without a ledger it must be given.
            ledger: the run's file.
            clipping: as of ``start``.

        Raises TypeError, ValueError: where neither step nor ledger is given, and where the secret
        state or the ledger is of another plan.

        Guarantees: the gradients of all steps, before and after, have ``guarantee``, where one run
        alone goes on, or those that do have one ledger.
        """
        if step is None and ledger is None:
            raise ValueError(
                "step or ledger must say what was released, or a step could be again, with the "
                "same noise on another sum: pass step= of a state_dict() that was kept at each "
                "step, or the run's ledger="
            )
        step = 0 if step is None else step
        return Run(self, module, loss, secret, step=step, ledger=ledger, **clipping)

    def adapted(self, bound: AdaptiveBound) -> "Plan":
        """This plan, its guarantee too, with a clipping bound that follows gradients' norms.

        Raises TypeError.
        """
        return replace(self, adaptive=checks.instance("bound", bound, AdaptiveBound))

    def save(self, path: str | Path) -> None:
        """Into a file that :meth:`load` reads, to the last digit.

        Raises TypeError for a custom strategy.
        """
        for part in (self.strategy, getattr(self.sampling, "rule", self.sampling)):
            kind = type(part)
            if kind.__module__.partition(".")[0] != "torchdp":
                raise TypeError(
                    f"a file can not hold a {kind.__name__}, whose code is one's own; make the "
                    "plan again from what made it, or take Tabulated(strategy.recurrence) for its "
                    "strategy"
                )
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for field in fields(self):
            content[field.name] = described(getattr(self, field.name), name=field.name)
        torch.save(content, path)

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """The plan of a file, by ``torch.load``'s default: nothing in the file is run.

        Raises ValueError where it is no plan's, and where its noise does not give its guarantee,
        which is computed anew.
        """
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            kind = content.pop("format", "no format")
            version = content.pop("version", "no version")
            if (kind, version) != (FORMAT, VERSION):
                raise ValueError(
                    f"its format is {kind!r}, version {version!r}, and this release reads "
                    f"{FORMAT!r}, version {VERSION}; load it by the release that wrote it, or "
                    "choose the plan again"
                )
            description = {"made": f"{Plan.__module__}:{Plan.__qualname__}", "of": content}
            plan = made(description, Plan, rooms=PACKAGES)
            checks.positive("sigma", plan.sigma)
            users = checks.integer("users", plan.users, 1)
            checks.integer("batch", plan.batch, 1, users)
            checks.floating("standard_errors", plan.standard_errors)
            computed = plan.computed(plan.strategy.steps)
        except OSError:
            raise
        except Exception as error:  # of whatever kind: the file is anybody's
            raise ValueError(f"{Path(path).name} is not what Plan.save writes: {error}") from error
        # A file may promise anything: what counts is what its noise gives.
        if not computed.epsilon <= plan.guarantee.epsilon * (1 + ROUNDING):
            raise ValueError(f"{Path(path).name} promises {plan.guarantee}, its noise {computed}")
        return replace(plan, guarantee=computed)
