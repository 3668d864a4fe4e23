"""The steps of a private training run, each used once.

On one process or several, resumable after a kill.
"""

from collections.abc import Callable, Mapping, Sequence
from os import urandom
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.noise import Noise
from torchdp.privacy import Guarantee
from torchdp.training import replicas
from torchdp.training.batches import ParticipationLog
from torchdp.training.clipping import Clipper, Inputs
from torchdp.training.mechanism import Mechanism
from torchdp.training.noise import CorrelatedNoise
from torchdp.training.secret import Ledger, Secret, opened
from torchdp.training.steps import NO_BATCH, Steps
from torchdp.training.stream import KEY
from torchdp.training.sums import clipped_rows, set_gradients


class Run(Steps):
    """The steps of a :class:`Plan`, each once and in order.

    Made by :meth:`Plan.start` and :meth:`Plan.resume`.

        for users in run:  # who is in this step
            run.backward(inputs[users], targets[users])  # private gradients in ``.grad``
            optimizer.step()

    ``loader`` reads rows ahead, and cuts batches that are larger than memory. ``backward`` clips
    each user's gradient, adds them up, adds the step's noise and divides by ``plan.batch``;
    ``release`` does so with gradients that were made elsewhere. Each batch that was handed out must
    be used, once, before the next one; else RuntimeError, and nothing is released. An interrupt
    leaves the step spent and its batch used, or neither; a part of a batch counts, or not; threads
    take turns; copies and pickles are refused.

    module, loss: as in :func:`clip_and_sum`, one example for each user; clipping: its routes,
    unused and groups.

    After a kill: ``secret_state``, kept once at the start or at any step, and the ``state_dict`` of
    a checkpoint or the ledger go on with the noise and the batches of the run that was not killed.
    Whoever knows the secret state can subtract the noise. The state dict holds the step and nothing
    secret. Of two runs of one secret state that are alive at once only those with one ledger keep
    from releasing a step twice: the later one gets a RuntimeError.

    Several processes (a group of torch.distributed): all of them make the run; the key is process
    0's. Each hands out and clips its part of a batch, draws and keeps the noise of its part of the
    gradient, and gets all of it. Every process calls ``backward`` equally often, as those of one
    ``loader`` do. The module must not be sharded.

    Guarantees: all gradients together, and so the trained parameters, have ``plan.guarantee``,
    where each user's gradient is a function of that user, and the module's author is honest; how
    examples are kept apart ``route`` says; see :func:`clip_and_sum`.
    """

    def __init__(
        self,
        plan: Mechanism,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        draws: Noise | dict[str, Any],
        *,
        step: int | Mapping[str, Any] = 0,
        ledger: str | Path | None = None,
        at_once: int | None = None,
        memory: int | None = None,
        **clipping: Any,
    ) -> None:
        self.module = checks.instance("module", module, nn.Module)
        self.loss = loss
        self._clipper = Clipper(module, loss, **clipping)
        self._options: dict[str, int] = {}
        if at_once is not None:
            self._options["at_once"] = checks.integer("at_once", at_once, 1)
        if memory is not None:
            self._options["memory"] = checks.integer("memory", memory, 1)
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("module must have a parameter that requires a gradient")
        self._dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        self._device = parameters[0].device
        # The rows of an adaptive bound have one number more.
        self._whole = sum(p.numel() for p in parameters) + (plan.adaptive is not None)
        self._deviations: list[float] = []
        self._group = replicas.several()
        if self._group:
            replicas.check_models(list(module.parameters()))

        past = None
        if isinstance(draws, Noise):
            secret = Secret(draws.words((KEY // 8,)).cpu().numpy().tobytes())
        else:
            secret, past = opened(draws, plan)
        self._secret = Secret(replicas.from_first(secret.key)) if self._group else secret

        self._chunk = -(-self._whole // replicas.place()[1])
        self.noise = self._part_of_noise(plan, past)
        self._ledger = self._own_ledger(plan, ledger, past is None)
        given = step if isinstance(step, Mapping) else {"step": step}
        step, bound = self._latest(plan, given, past)
        self.noise.skip(step)
        self._bound = bound if plan.adaptive else plan.bound
        # Masks are no noise: after a kill they are other ones.
        self._masks = self._secret.generator(b"masks", urandom(16))
        self._unit = plan.adaptive.unit(self.bound, plan.bound) if plan.adaptive else 1.0
        super().__init__(plan, self._secret, self.step, past)

    def _part_of_noise(self, plan: Mechanism, past: dict[str, Any] | None) -> CorrelatedNoise:
        """This process's: of so many parts of the gradient as there are, the last ones less."""
        first = min(replicas.place()[0] * self._chunk, self._whole - 1)
        noise = CorrelatedNoise(
            plan.strategy.to(self._device),
            max(1, min(self._chunk, self._whole - first)),
            plan.sigma,
            noise=self._secret.noise(b"noise", self._device),
            dtype=self._dtype,
            shard=(first, self._whole),
        )
        # At step 0 there is no past: noise follows from the key alone.
        if past and past["step"]:
            kept = {name: past[name] for name in ("step", "past")}
            noise.load_secret_state(noise.secret_state() | kept)
        return noise

    def _own_ledger(self, plan: Mechanism, given: str | Path | None, fresh: bool) -> Ledger:
        """This process's. fresh: whether the run starts."""
        name = self._secret.digest(b"ledger" + plan.digest()).hex()
        path = None if given is None else Path(given)
        rank = replicas.place()[0]
        if path is not None and rank:
            path = path.with_name(f"{path.name}.{rank}")
            # A group may be larger than that of before; of all ledgers the latest step counts.
            fresh = fresh or not path.exists()
        return Ledger(path, name, fresh)

    def _latest(
        self, plan: Mechanism, given: Mapping[str, Any], past: dict[str, Any] | None
    ) -> tuple[int, float]:
        """The latest step that any of what is kept knows, in any process, and the latest bound."""
        latest: Any = given.get("step")
        step = checks.integer("step", latest, 0, plan.strategy.steps)
        bounds = list(self._ledger.bounds)
        for state in (given, past or {}):
            if "bound" in state:
                bounds.append((state["step"], checks.positive("bound", state["bound"])))
        # The latest of all: a step that any of them knows may have been released.
        known = max(step, self.noise.step, self._ledger.step), max(bounds, default=(0, plan.bound))
        step, (_, bound) = replicas.most(known) if self._group else known
        return step, bound

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self.noise.step

    @property
    def route(self) -> str:
        """How the last step's gradients were made, and what keeps examples apart.

        And why earlier routes were not taken.
        """
        return self._clipper.route

    @property
    def bound(self) -> float:
        """The clipping bound of the next step, public.

        The plan's, or where it is adaptive a function of outputs.
        """
        return self._bound

    @property
    def guarantee(self) -> Guarantee:
        """Of all steps, spent or not."""
        return self.plan.guarantee

    @property
    def spent(self) -> Guarantee:
        """Of the steps that are spent."""
        return self.plan.spent(self.step)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each number of the last step's ``.grad``; public.

        0 before the first.
        """
        if not self._deviations:
            self._deviations = [0.0, *self.plan.deviations().tolist()]
        return self._deviations[self.step] * self._unit

    def backward(self, inputs: Inputs, targets: Tensor, *, more: bool = False) -> Tensor:
        """Puts the step's private mean gradient into ``.grad`` of the module's parameters.

        Parts of any size have one sum, up to rounding. Dropout masks are drawn for each user, and
        are other ones after a kill.

        Args:
            inputs: one row for each user, as :func:`clip_and_sum` takes them.
            targets: likewise.
            more: whether other rows of this batch follow, in a custom loop: then ``.grad`` stays as
                it is, and the step is spent by the call without ``more``.

        Returns the mean of these users' losses (of this process's; NaN for an empty batch), which
        is **not private**: for logs that stay where the data are.
        """
        step = self._expect("targets", len(targets), more)
        # The module is one for all threads, and the call swaps its parameters.
        with self._turn:
            bound = self.bound
            total, mean = self._clipper(
                inputs, targets, bound, dropout=self._masks, **self._options
            )
            total = self._rows(total, self._clipper.balance, bound)
        self._add(total, len(targets), more, step)
        return mean

    def release(self, gradients: Sequence[Tensor], *, more: bool = False) -> None:
        """As ``backward``, of the users' gradients.

        Args:
            gradients: for each trainable parameter (n, *shape), n users' own: of
                ``torch.func.vmap(grad(...))``, or of Opacus: [p.grad_sample for p in
                module.parameters()]. Each must be a function of its own user's data, as it is not
                after batch normalisation.
            more: as there.
        """
        if any(isinstance(g, list) for g in gradients):
            raise ValueError(
                "gradients must be Tensors, one for each parameter, not lists: Opacus keeps those "
                "of earlier backward passes; call zero_grad() of its module before each, the "
                "optimizer's leaves them"
            )
        count = len(checks.several("gradients", gradients, Tensor)[0])
        step = self._expect("gradients", count, more)
        own = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        shapes = [tuple(p.shape) for p in own.values()]
        if [tuple(g.shape[1:]) for g in gradients] != shapes:
            raise ValueError(f"gradients must be (n, *shape), for parameters of shapes {shapes}")
        # Read once: rows are scaled by what they were clipped to.
        bound = self.bound
        rows = dict(zip(own, gradients, strict=True))
        total, balance = clipped_rows(rows, self._clipper.bounds(bound))
        self._add(self._rows(total, balance, bound), count, more, step)

    def state_dict(self) -> dict[str, Any]:
        """The step, and the next one's bound where it is adaptive. Nothing in it is secret."""
        with self._turn:
            state: dict[str, Any] = {"step": self.step}
            if self.plan.adaptive:
                state["bound"] = self.bound
            return state

    def secret_state(self) -> dict[str, Any]:
        """What :meth:`Plan.resume` needs: step, key, past noise, and which plan it is of.

        As secret as the data.
        At step 0 there is no past: 64 bytes that serve the whole run, whose later steps a resumed
        run passes over, and every process of a group. Later each process needs its own, and where
        batches are one's own it holds who came when, so that only the last step's serves.
        ``torch.load`` reads it as it is.
        """
        with self._turn:
            past = self.noise.secret_state()["past"] if self.step else torch.empty(0)
            state = self._secret.state(self.plan, self.step, past) | self.state_dict()
            if isinstance(self.batches, ParticipationLog):
                state["attendance"] = self.batches.attendance.clone()
        return state

    def _rows(self, total: Tensor, balance: Tensor, bound: float) -> Tensor:
        adaptive = self.plan.adaptive
        return adaptive.rows(total, balance, bound, self.plan.bound) if adaptive else total

    def _release_nobody(self, step: int) -> None:
        self._add(torch.zeros(self._whole, dtype=self._dtype, device=self._device), 0, False, step)

    def _add(self, total: Tensor, count: int, more: bool, step: int) -> None:
        """The clipped sum of some rows of this step's batch.

        Of the last ones the private mean goes into ``.grad``.
        """
        if len(total) != self._whole:
            raise ValueError("module has other trainable parameters than when the run was made")
        plan = self.plan
        with self._turn:
            waiting = self._waiting
            if waiting.step != step or step != self.step:
                raise RuntimeError(NO_BATCH)
            last = waiting.last("rows", count, more)
            if waiting.total is not None:
                total = waiting.total + total
            if not last:
                # A new tensor and one assignment: an interrupt counts the part, or not.
                self._waiting = waiting.with_part(total.double(), count, more)
                return
            total = total.to(self._dtype)
            if self._group:
                total = replicas.added(total, self._chunk)
            # On the disk before the noise is drawn: a kill loses the step, and repeats none.
            self._ledger.record(step + 1)
            private = self.noise(total[: self.noise.size])
            if self._group:
                private = replicas.joined(private, self._chunk, self._whole)
            if plan.adaptive:
                self._unit = plan.adaptive.unit(self.bound, plan.bound)
                # With its noise: the next bound is a function of outputs alone.
                number = float(private[-1])
                private = private[:-1] * self._unit
                self._bound = plan.adaptive.following(number, self.bound, plan.bound, plan.batch)
                # No resumed run gets this output again: the bound that follows from it is kept.
                self._ledger.record(self.step, self.bound)
        # By the plan's size: how many users were in this batch is not private.
        set_gradients(self.module, private / plan.batch)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Run can not be copied or pickled: batches would be used twice; see secret_state"
        )
