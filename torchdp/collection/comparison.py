"""Two groups of users compared."""

from collections.abc import Callable
from functools import partial

import torch
from scipy.special import ndtr
from torch import Tensor

from torchdp import checks
from torchdp.collection.collection import Collection
from torchdp.collection.journal import Journal, held
from torchdp.description import same
from torchdp.protocol import Estimate
from torchdp.protocol.interval import quantile
from torchdp.threads import on_host

Stretch = Callable[[float], Tensor | float]
# p-values where the error is not normal
TAILS = torch.logspace(-12, 0, 73, dtype=torch.float64, device="cpu")[:-1]


class Difference(Estimate):
    """The first group's answer less the second's; as private as the two estimates. n: users of both groups."""

    @property
    @on_host
    def p_value(self) -> Tensor:
        """Two-sided, of the hypothesis that the difference is 0: ``interval(1 - p)`` ends at 0."""
        z = self.parts.distance(self.value, self.bias).cpu()
        normal = torch.as_tensor(2 * ndtr(-z.numpy()), dtype=torch.float64)
        p = normal if self.stretch is None else _tails(z, self.stretch)
        return p.to(self.value.device, torch.float64)


def difference(first: Estimate, second: Estimate) -> Difference:
    """The difference of the estimates of two groups that have no user in common, each with noise of its own.

    Of ``estimate()`` of each it is about these users: two real groups hardly ever agree exactly, so with enough users
    every p-value is small. First ``pairwise.of_population``, and it is about the populations they were drawn from.
    Not for paired data, where a user has a value under each of two conditions: the two errors are then dependent. For
    those define the question on pairs of values (one type for each pair) and send one message.
    Epsilon, the protocol and n may differ between the groups; of fitted answers the unbiased ones are compared.
    Raises TypeError.
    """
    for name, value in (("first", first), ("second", second)):
        checks.instance(name, value, Estimate)
    (low, high), (other_low, other_high) = first.limits, second.limits
    return Difference(
        first.centre - second.centre,
        (first.standard_error.square() + second.standard_error.square()).sqrt(),
        first.n + second.n,
        first.bias + second.bias,
        first.parts.joined(second.parts.scaled(-1.0)),
        (low - other_high, high - other_low),
        partial(_widest, stretches) if (stretches := [e.stretch for e in (first, second) if e.stretch]) else None,
    )


@on_host
def _widest(stretches: list[Stretch], level: float) -> Tensor:
    """Of a sum of independent errors: it lies between their distributions and the normal one."""
    each = [torch.as_tensor(stretch(level), dtype=torch.float64).cpu() for stretch in stretches]
    return torch.stack(torch.broadcast_tensors(torch.ones(()).double(), *each)).amax(0)


@on_host
def _tails(z: Tensor, stretch: Stretch) -> Tensor:
    """p whose ends lie z normal deviations away, by lines between the logarithms of TAILS, the first at least."""
    each = [torch.as_tensor(quantile(1 - p) * stretch(1 - p), dtype=torch.float64).cpu() for p in TAILS.tolist()]
    ends = torch.stack([*(end.expand(z.shape) for end in each), torch.zeros_like(z)])
    logs = torch.cat([TAILS.log(), TAILS.new_zeros(1)])
    place = (ends >= z).sum(0).clamp(1, len(TAILS))
    above, below = (ends.gather(0, (place - back)[None])[0] for back in (1, 0))
    share = ((above - z) / (above - below)).clamp(0, 1)
    return torch.lerp(logs[place - 1], logs[place], share).exp()


def compare(first: Collection | Journal, second: Collection | Journal) -> Difference:
    """``difference`` of the estimates of two collections, or journals, that ask the same question.

    Raises TypeError; ValueError for different subjects, and for a batch that is in both: users who count in both groups
    make the errors dependent (users who answered twice under two batches cannot be seen, and must not be).
    """
    first, second = held("first", first), held("second", second)
    if not same(first.protocol.subject, second.protocol.subject):
        raise ValueError("first and second must estimate the same thing: their protocols have different subjects")
    shared = first.batches.items() & second.batches.items()
    if shared:
        raise ValueError(
            f"first and second share {len(shared)} batches, such as {min(shared)[0]!r}: the groups must have no user "
            "in common; paired data need a question about pairs of values"
        )
    return difference(first.estimate(), second.estimate())
