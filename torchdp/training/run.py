"""The steps of a private training run, each used once: on one process or several, resumable after a
kill.
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
    """The steps of a :class:`Plan`, each once and in order. Made by :meth:`Plan.start` and
    :meth:`Plan.resume`.

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
        **clipping: Any,
    ) -> None:
        self.module = checks.instance("module", module, nn.Module)
        self.loss = loss
        self._clipper = Clipper(module, loss, **clipping)
        self._options = (
            {} if at_once is None else {"at_once": checks.integer("at_once", at_once, 1)}
        )
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("module must have a parameter that requires a gradient")
        self._dtype, self._device = (
            torch.promote_types(parameters[0].dtype, torch.float32),
            parameters[0].device,
        )
        self._whole = sum(p.numel() for p in parameters) + (plan.adaptive is not None)
        self._group, self._deviations = replicas.several(), list[float]()
        if self._group:
            replicas.check_models([*module.parameters()])
        rank, ranks = replicas.place()
        self._chunk = -(-self._whole // ranks)
        first = min(rank * self._chunk, self._whole - 1)
        size = max(1, min(self._chunk, self._whole - first))
        if isinstance(draws, Noise):
            secret, past = Secret(draws.words((KEY // 8,)).cpu().numpy().tobytes()), None
        else:
            secret, past = opened(draws, plan)
        self._secret = Secret(replicas.from_first(secret.key)) if self._group else secret
        self.noise = CorrelatedNoise(
            plan.strategy.to(self._device),
            size,
            plan.sigma,
            noise=self._secret.noise(b"noise", self._device),
            dtype=self._dtype,
            shard=(first, self._whole),
        )
        if past and past["step"]:
            kept = {name: past[name] for name in ("step", "past")}
            self.noise.load_secret_state(self.noise.secret_state() | kept)
        name = self._secret.digest(b"ledger" + plan.digest()).hex()
        self._ledger = Ledger(None if ledger is None else Path(ledger), name, past is None)
        given: dict[str, Any] = {"step": None}
        given |= step if isinstance(step, Mapping) else {"step": step}
        step = checks.integer("step", given["step"], 0, plan.strategy.steps)
        bounded = [one for one in (given, past or {}) if "bound" in one]
        told = [(one["step"], checks.positive("bound", one["bound"])) for one in bounded]
        latest_told = max(told + self._ledger.bounds, default=(0, plan.bound))
        at = max(step, self.noise.step, self._ledger.step), latest_told
        step, (_, latest) = replicas.most(at) if self._group else at
        self.noise.skip(step)
        self._bound = latest if plan.adaptive else plan.bound
        self._masks = self._secret.generator(b"masks", urandom(16))
        self._unit = plan.adaptive.unit(self.bound, plan.bound) if plan.adaptive else 1.0
        super().__init__(plan, self._secret, self.step, past)

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self.noise.step

    @property
    def route(self) -> str:
        """How the last step's gradients were made, what keeps examples apart, and why earlier
        routes were not taken.
        """
        return self._clipper.route

    @property
    def bound(self) -> float:
        """The clipping bound of the next step, public: the plan's, or where it is adaptive a
        function of outputs.
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
        """Standard deviation of the noise in each number of the last step's ``.grad``; public. 0
        before the first.
        """
        if not self._deviations:
            self._deviations = [0.0, *self.plan.deviations().tolist()]
        return self._deviations[self.step] * self._unit

    def backward(self, inputs: Inputs, targets: Tensor, *, more: bool = False) -> Tensor:
        """Puts the step's private mean gradient into ``.grad`` of the module's parameters; one row
        for each user.

        more: whether other rows of this batch follow, in a custom loop: then ``.grad`` stays as it
        is, and the step is spent by the call without ``more``. Parts of any size have one sum, up
        to rounding. Dropout masks are drawn for each user, and are other ones after a kill. Returns
        the mean of these users' losses (of this process's; NaN for an empty batch), which is **not
        private**: for logs that stay where the data are.
        """
        step = self._expect("targets", len(targets), more)
        with self._turn:  # the module is one for all threads; the call swaps its parameters
            bound = self.bound
            total, mean = self._clipper(
                inputs, targets, bound, dropout=self._masks, **self._options
            )
            total = self._rows(total, self._clipper.balance, bound)
        self._add(total, len(targets), more, step)
        return mean

    def release(self, gradients: Sequence[Tensor], *, more: bool = False) -> None:
        """As ``backward``, of the users' gradients: for each trainable parameter (n, *shape), n
        users' own.

        Of ``torch.func.vmap(grad(...))``, or of Opacus: [p.grad_sample for p in
        module.parameters()]. Each must be a function of its own user's data, as it is not after
        batch normalisation.
        """
        if any(isinstance(g, list) for g in gradients):
            raise ValueError(
                "gradients must be Tensors, one for each parameter, not lists: Opacus keeps those of earlier backward "
                "passes; call zero_grad() of its module before each, the optimizer's leaves them"
            )
        count = len(checks.several("gradients", gradients, Tensor)[0])
        step = self._expect("gradients", count, more)
        shapes = [tuple(g.shape[1:]) for g in gradients]
        expected = {
            name: tuple(p.shape) for name, p in self.module.named_parameters() if p.requires_grad
        }
        if shapes != [*expected.values()]:
            raise ValueError(
                f"gradients must be (n, *shape), for parameters of shapes {[*expected.values()]}"
            )
        bound = self.bound  # read once: rows are scaled by what they were clipped to
        rows = dict(zip(expected, gradients, strict=True))
        self._add(
            self._rows(*clipped_rows(rows, self._clipper.bounds(bound)), bound), count, more, step
        )

    def state_dict(self) -> dict[str, Any]:
        """The step, and the next one's bound where it is adaptive. Nothing in it is secret."""
        with self._turn:
            return {"step": self.step, **({"bound": self.bound} if self.plan.adaptive else {})}

    def secret_state(self) -> dict[str, Any]:
        """What :meth:`Plan.resume` needs: step, key, past noise, and which plan it is of. As secret
        as the data.

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
        """The clipped sum of some rows of this step's batch; of the last ones, its private mean
        into ``.grad``.
        """
        if len(total) != self._whole:
            raise ValueError("module has other trainable parameters than when the run was made")
        with self._turn:
            waiting = self._waiting
            if waiting.step != step or step != self.step:
                raise RuntimeError(NO_BATCH)
            last, before = waiting.last("rows", count, more), waiting.total
            total = total if before is None else before + total
            if not last:  # a new tensor and one assignment: an interrupt counts the part, or not
                self._waiting = waiting.with_part(total.double(), count, more)
                return
            total = total.to(self._dtype)
            mine = replicas.added(total, self._chunk) if self._group else total
            self._ledger.record(step + 1)
            private = self.noise(mine[: self.noise.size])
            private = replicas.joined(private, self._chunk, self._whole) if self._group else private
            if adaptive := self.plan.adaptive:
                self._unit = adaptive.unit(self.bound, self.plan.bound)
                number, private = float(private[-1]), private[:-1] * self._unit
                self._bound = adaptive.following(
                    number, self.bound, self.plan.bound, self.plan.batch
                )
                self._ledger.record(self.step, self.bound)
        set_gradients(self.module, private / self.plan.batch)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Run can not be copied or pickled: batches would be used twice; see secret_state"
        )
