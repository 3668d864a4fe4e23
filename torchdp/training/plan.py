"""One plan of a private training run, and a run of it: on one process or several, going on after a kill."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import urandom
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchdp import checks
from torchdp.factorization import StreamStrategy
from torchdp.noise import Noise, SeededNoise, source
from torchdp.privacy import Guarantee
from torchdp.randomness import keyed_generator
from torchdp.training import replicas
from torchdp.training.batches import Batches
from torchdp.training.binned import BallsInBins
from torchdp.training.clipping import ROUTES, Clipper, Inputs, clipped_sum, set_gradients
from torchdp.training.ledger import Ledger
from torchdp.training.loading import PrefetchSampler, loader
from torchdp.training.noise import CorrelatedNoise, noise_guarantee
from torchdp.training.participation import Participation
from torchdp.training.sampled import CyclicPoisson, SampledBatches
from torchdp.training.sharded import reshard
from torchdp.training.stream import KEY, VERSION, octets

NO_BATCH = "no batch waits: backward once for each batch that iteration hands out"


@dataclass(frozen=True)
class Plan:
    """Sampling, clipping, strategy and noise that belong together, and what they promise together.

    strategy: C; sampling: how users come into the steps; bound: largest norm of a user's part; sigma:
    standard deviation of the noise before C^{-1}, in the gradients' units; users, batch: how many there are, and are in
    a step (where sampled: on average; of balls in bins users / bins, which may be less). guarantee: of all steps
    together. standard_errors: of each row of W (G + C^{-1} Z), (queries,), in the gradients' units. Made by
    :func:`choose`.
    """

    strategy: StreamStrategy
    sampling: Participation | CyclicPoisson | BallsInBins
    bound: float
    sigma: float
    users: int
    batch: int
    guarantee: Guarantee
    standard_errors: Tensor

    def start(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        noise: Noise | None = None,
        ledger: str | Path | None = None,
        routes: Sequence[str] = ROUTES,
    ) -> "Run":
        """A run of this plan, spent once.

        noise: 256 bits of which sampling and noise are a function come from here, for None from the system. ledger: a
        file that does not exist yet; it is told of each step before its gradient is. module: in a group of processes
        a copy in each, or cut by ``fully_shard``; see :class:`Run`. routes: to each user's gradient, of
        :func:`clip_and_sum`. Raises TypeError, ValueError.
        """
        return Run(self, module, loss, source(noise), ledger=ledger, routes=routes)

    def resume(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        secret: dict[str, Any],
        *,
        step: int | None = None,
        ledger: str | Path | None = None,
        routes: Sequence[str] = ROUTES,
    ) -> "Run":
        """The run of which ``secret`` is :meth:`Run.secret_state`, from the first step on that may not have been seen.

        That is the latest of the secret state's, of ``step`` (of :meth:`Run.state_dict`) and of the ledger's. Steps in
        between are lost: their noise is drawn, as later noise needs it, and answers no other sum. Without a ledger
        ``step`` must say how many steps may have been released. The model may be an older one. Raises ValueError, where
        neither is given, and where the secret state or the ledger is of another plan too.

        Guarantees: the gradients of all steps, before and after, have ``guarantee``, where one run alone goes on, or
        those that do have one ledger.
        """
        if step is None and ledger is None:
            raise ValueError(
                "step or ledger must say what was released, or a step could be again, with the same noise on another "
                "sum: pass step= of a state_dict() that was kept at each step, or the run's ledger="
            )
        return Run(self, module, loss, secret, step=0 if step is None else step, ledger=ledger, routes=routes)

    def spent(self, steps: int) -> Guarantee:
        """What the gradients of the first ``steps`` steps promise; with balls in bins from the first on all.

        Raises ValueError.
        """
        if not checks.integer("steps", steps, 0, self.strategy.steps):
            return replace(self.guarantee, epsilon=0.0, delta=0.0, mu=None)
        if isinstance(self.sampling, BallsInBins):
            return self.guarantee
        C, delta = self.strategy.leading(steps), self.guarantee.delta
        if isinstance(self.sampling, CyclicPoisson):
            return self.sampling.guarantee(C, self.sigma, self.bound, delta)
        found = noise_guarantee(C, self.sigma, self.bound, delta, self.sampling)
        # fewer rows may cancel less, and make a sum of sizes larger; but all steps show the first ones, too
        return found if found.epsilon <= self.guarantee.epsilon else replace(self.guarantee, exact=False)

    def digest(self) -> bytes:
        """32 bytes that name this plan."""
        rest = (VERSION, self.sampling, self.bound, self.sigma, self.users, self.batch)
        return hashlib.sha256(self.strategy.recurrence.digest() + repr(rest).encode()).digest()

    def __str__(self) -> str:
        C = self.strategy
        return (
            f"{self.guarantee}\n{C.steps} steps of {self.batch} of {self.users} users, {self.sampling}, "
            f"clipped to {self.bound:g}; noise of standard deviation {self.sigma:g} over a strategy of {C}"
        )


class Run:
    """The steps of a :class:`Plan`, each once and in order. Made by :meth:`Plan.start` and :meth:`Plan.resume`.

        for users in run:  # who is in this step
            run.backward(inputs[users], targets[users])  # private gradients in ``.grad``
            optimizer.step()

    ``loader`` reads rows ahead. ``backward`` clips each user's gradient, adds them up, adds the step's noise and
    divides by ``plan.batch``; ``release`` does so with gradients that were made elsewhere. Each batch that was handed
    out must be used, once, before the next one; else RuntimeError, and nothing is released. An interrupt leaves the
    step spent and its batch used, or neither; threads take turns; copies and pickles are refused.

    module, loss: as in :func:`clip_and_sum`, one example for each user.

    After a kill: ``secret_state``, kept once at the start or at any step, and the ``state_dict`` of a checkpoint or the
    ledger go on with the noise and the batches of the run that was not killed. Whoever knows the secret state can
    subtract the noise. The state dict holds the step and nothing secret. Of two runs of one secret state that are alive
    at once only those with one ledger keep from releasing a step twice: the later one gets a RuntimeError.

    Several processes (a group of torch.distributed): all of them make the run; the key is process 0's. Each hands out
    and clips its part of a batch, draws and keeps the noise of its part of the gradient, and gets all of it. The module
    may be cut by ``torch.distributed.fsdp.fully_shard``: ``backward`` gathers its parameters for the time of the call,
    in their own dtype, and ``.grad`` is a shard, as the optimizer's state then is. Raises ValueError on parameters that
    are cut along another dimension than 0, and on FullyShardedDataParallel.

    Guarantees: all gradients together, and so the trained parameters, have ``plan.guarantee``, where each user's
    gradient is a function of that user: by construction, or as far as was checked; ``route`` says which, and
    :func:`clip_and_sum` what that means.
    """

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        draws: Noise | dict[str, Any],
        *,
        step: int = 0,
        ledger: str | Path | None = None,
        routes: Sequence[str] = ROUTES,
    ) -> None:
        self.plan, self.module, self.loss = plan, module, loss
        reshard(checks.instance("module", module, nn.Module))
        self._clipper = Clipper(module, loss, routes=routes)
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("module must have a parameter that requires a gradient")
        steps, dtype = plan.strategy.steps, torch.promote_types(parameters[0].dtype, torch.float32)
        self._device, self._whole = parameters[0].device, sum(p.numel() for p in parameters)
        self._group = replicas.several()
        rank, ranks = self._place()
        self._chunk = -(-self._whole // ranks)
        first = min(rank * self._chunk, self._whole - 1)
        size = max(1, min(self._chunk, self._whole - first))
        if isinstance(draws, Noise):
            key, secret = draws.words((KEY // 8,)).cpu().numpy().tobytes(), None
        else:
            key, secret = _checked(draws, plan)
        self._key = replicas.from_first(key) if self._group else key
        noise = self._derived(b"noise", self._device)
        self.noise = CorrelatedNoise(
            plan.strategy.to(self._device), size, plan.sigma, noise=noise, dtype=dtype, shard=(first, self._whole)
        )
        if secret and secret["step"]:
            self.noise.load_secret_state({**self.noise.secret_state(), **secret})
        name = self._digest(b"ledger" + plan.digest()).hex()
        self._ledger = Ledger(None if ledger is None else Path(ledger), name, secret is None)
        step = max(checks.integer("step", step, 0, steps), self.noise.step, self._ledger.step)
        self.noise.skip(replicas.most(step) if self._group else step)
        self._masks = self._generator(b"masks", urandom(16))
        self.batches: Batches | SampledBatches
        if not isinstance(plan.sampling, Participation):
            drawn = self._derived(b"batches")
            self.batches = SampledBatches(plan.sampling, plan.users, steps, noise=drawn, first=self.step)
        else:
            order = self._generator(b"order")  # public: it may become known, and tells of no other word
            self.batches = Batches(plan.sampling, plan.users, plan.batch, steps, generator=order, first=self.step)
        self._handed = (
            -1,
            0,
        )  # the step that the last batch is for, and its users: it waits while that is the next one
        self._turn = threading.RLock()

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self.noise.step

    @property
    def route(self) -> str:
        """How the last step's gradients were made, whether users are apart by construction, and why not otherwise."""
        return self._clipper.route

    @property
    def guarantee(self) -> Guarantee:
        """Of all steps, spent or not."""
        return self.plan.guarantee

    @property
    def spent(self) -> Guarantee:
        """Of the steps that are spent."""
        return self.plan.spent(self.step)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        rank, ranks = self._place()
        while self.step < self.noise.steps:
            with self._turn:
                self._refuse_unused()
                self.batches.step = self.step  # whatever was interrupted, a batch is for the step of its number
                users = torch.tensor(next(iter(self.batches)), dtype=torch.int64)[rank::ranks]
                self._handed = (self.step, len(users))
            yield users

    def loader(self, data: Dataset[Any], **options: Any) -> Iterator[Any]:
        """The rows of ``data`` for the batch of each step that is left, read ahead, as a ``DataLoader`` gives them.

            for inputs, targets in run.loader(data, num_workers=4):
                run.backward(inputs, targets)
                optimizer.step()

        data: a row for each user. options: of ``DataLoader``, but for those that say who is in a batch. A batch of
        nobody has tensors of no rows. Each batch must be used before the next one, as in iteration. Raises TypeError,
        ValueError.
        """
        with self._turn:
            first = self.batches.step = self.step
            ahead = PrefetchSampler(self.batches, *self._place())
        rows = loader(data, ahead, self.plan.users, self._generator(b"loader", urandom(16)), options)
        return self._handing(rows, ahead, first)

    def _handing(self, rows: Iterable[Any], ahead: PrefetchSampler, first: int) -> Iterator[Any]:
        for step, batch in enumerate(rows, first):
            with self._turn:
                self._refuse_unused()
                if step != self.step:
                    raise RuntimeError(
                        f"the run is at step {self.step}, this loader at {step}: call run.loader again"
                    )
                self._handed, self.batches.step = (step, ahead.counts.popleft()), step + 1
            yield batch

    def _refuse_unused(self) -> None:
        if self._handed[0] == self.step:
            raise RuntimeError(
                "the last batch was not used: call backward once for each, or the steps would not fit"
            )

    def _place(self) -> tuple[int, int]:
        """This process's number, and how many there are."""
        return replicas.place() if self._group else (0, 1)

    def backward(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Puts the step's private mean gradient into ``.grad`` of the module's parameters; one row for each user.

        All rows of the batch in one call, which splits them by itself. Dropout masks are drawn for each user, and are
        other ones after a kill. Returns the mean of the users' losses (of this process's; NaN for nobody), which is
        **not private**: for logs that stay where the data are.
        """
        step = self._expect("targets", len(targets))
        total, mean = self._clipper(inputs, targets, self.plan.bound, dropout=self._masks)
        self._release(total, step)
        return mean

    def release(self, gradients: Sequence[Tensor]) -> None:
        """As ``backward``, of the users' gradients: for each trainable parameter (n, *shape), n users' own.

        Of ``torch.func.vmap(grad(...))``, or of Opacus: [p.grad_sample for p in module.parameters()]. Each must be a
        function of its own user's data, as it is not after batch normalisation.
        """
        if any(isinstance(g, list) for g in gradients):
            raise ValueError(
                "gradients must be Tensors, one for each parameter, not lists: Opacus keeps those of earlier backward "
                "passes; call zero_grad() of its module before each, the optimizer's leaves them"
            )
        step = self._expect("gradients", len(checks.several("gradients", gradients, Tensor)[0]))
        shapes = [tuple(g.shape[1:]) for g in gradients]
        expected = [tuple(p.shape) for p in self.module.parameters() if p.requires_grad]
        if shapes != expected:
            raise ValueError(f"gradients must be one (n, *shape) tensor for each parameter, of shapes {expected}")
        self._release(clipped_sum(gradients, self.plan.bound), step)

    def state_dict(self) -> dict[str, int]:
        """The step. Nothing in it is secret."""
        return {"step": self.step}

    def secret_state(self) -> dict[str, Any]:
        """What :meth:`Plan.resume` needs: step, key, past noise, and which plan it is of. As secret as the data.

        At step 0 there is no past: 64 bytes that serve the whole run, whose later steps a resumed run passes over, and
        every process of a group. Later each process needs its own.
        """
        past = self.noise.secret_state()["past"] if self.step else torch.empty(0)
        key, plan = (torch.tensor(list(part), dtype=torch.uint8) for part in (self._key, self.plan.digest()))
        return {"step": self.step, "key": key, "past": past, "plan": plan}

    def _expect(self, name: str, count: int) -> int:
        """The step of the batch that waits, where these are as many. Raises RuntimeError, ValueError."""
        with self._turn:
            step, users = self._handed
            if step != self.step:
                raise RuntimeError(NO_BATCH)
            if count != users:
                raise ValueError(
                    f"{name} must be those of all the batch's {users} users in one call, not {count}: backward splits "
                    "a batch that is larger than memory by itself"
                )
            return step

    def _release(self, total: Tensor, step: int) -> None:
        """The private mean of the whole sum of the batch for this step into ``.grad``."""
        if len(total) != self._whole:
            raise ValueError("module has other trainable parameters than when the run was made")
        mine = replicas.added(total, self._chunk) if self._group else total
        with self._turn:
            if step != self.step:
                raise RuntimeError(NO_BATCH)
            self._ledger.record(step + 1)
            private = self.noise(mine[: self.noise.size])
        private = replicas.joined(private, self._chunk, self._whole) if self._group else private
        set_gradients(self.module, private / self.plan.batch)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Run can not be copied or pickled: a batch would be used twice; see secret_state and resume"
        )

    def _generator(self, name: bytes, more: bytes = b"") -> torch.Generator:
        """For what is no noise."""
        return keyed_generator(self._digest(name) + more)

    def _digest(self, purpose: bytes) -> bytes:
        return hashlib.sha256(self._key + purpose).digest()

    def _derived(self, purpose: bytes, device: torch.device | str = "cpu") -> SeededNoise:
        """The cipher under a key of its own."""
        return SeededNoise(int.from_bytes(self._digest(purpose), "little"), device)


def _checked(secret: dict[str, Any], plan: Plan) -> tuple[bytes, dict[str, Any]]:
    """Key, and step and past, of a secret state of this plan. Raises TypeError, ValueError."""
    names = {"step", "key", "past", "plan"}
    if not isinstance(secret, dict) or set(secret) != names:
        raise ValueError(f"secret must be what Run.secret_state returns, a dict of {', '.join(sorted(names))}")
    key, digest = (octets(name, secret[name]) for name in ("key", "plan"))
    if digest != plan.digest():
        raise ValueError("secret is of another plan: its noise is not what this plan's guarantee speaks of")
    checks.integer("step", secret["step"], 0, plan.strategy.steps)
    return key, {name: secret[name] for name in ("step", "past")}
