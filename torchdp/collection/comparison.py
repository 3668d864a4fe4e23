"""Two groups of users compared."""

from collections.abc import Callable
from functools import partial

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from torchdp import checks
from torchdp.collection.collection import Collection
from torchdp.collection.journal import Journal, held
from torchdp.description import same
from torchdp.protocol import Estimate
from torchdp.protocol.interval import quantile
from torchdp.randomness import keyed_generator
from torchdp.threads import on_host

Stretch = Callable[[float], Tensor | float]
ROUNDING = 1e-12  # of a variance, relative to the largest
DRAWS = 2**13  # of the chance that the largest of several errors is beyond z
# p-values where the error is not normal
TAILS = torch.logspace(-12, 0, 73, dtype=torch.float64, device="cpu")[:-1]


class Difference(Estimate):
    """The first group's answer less the second's; as private as the two estimates. n: users of both
    groups.

    Its interval is about these users, over the privacy noise alone: two groups of a population
    seldom have equal means. That of ``of_population()`` is about the two populations from which
    they are samples, and only it has a p-value.
    """

    @property
    def p_value(self) -> Tensor:
        """Two-sided, of the hypothesis that the populations' difference is 0: ``interval(1 - p)``
        ends at 0.

        Of each answer by itself: the least of several is no p-value, ``any`` is. Raises
        AttributeError for a difference of these users.
        """
        if not self.sampled:
            raise AttributeError(
                "a difference of these users has an interval, but no p-value: take it from .of_population(), whose "
                "error counts that the users are samples"
            )
        return self._p_value()

    @on_host
    def _p_value(self) -> Tensor:
        z = self.parts.distance(self.value, self.bias).cpu()
        normal = torch.as_tensor(2 * ndtr(-z.numpy()), dtype=torch.float64)
        p = normal if self.stretch is None else _tails(z, self.stretch)
        return p.to(self.value.device, torch.float64)

    def any(self) -> Tensor:
        """p, (*batch), of the hypothesis that no answer differs (last dimension): of the largest z
        of all of them.

        By the errors' covariance where it is known, else by Sidak's inequality, which holds for
        all. Raises AttributeError as ``p_value``.
        Source: Sidak (1967); Adler, Blanchet, Liu (2012), section 3, for the chance of a maximum.
        """
        each = checks.shaped("p_value", self.p_value, ..., "answers")
        least = each.amin(-1)
        if self.covariance is None:
            return -torch.expm1(each.shape[-1] * torch.log1p(-least.clamp_max(1 - 1e-16)))
        return _largest(self.covariance().to(least), least)


def difference(first: Estimate, second: Estimate) -> Difference:
    """The difference of the estimates of two groups that have no user in common, each with noise of
    its own.

    It is about these users where the two estimates are, and ``of_population()`` about the
    populations from which they were drawn: that one has p-values.
    Not for paired data, where a user has a value under each of two conditions: the two errors are
    then dependent. For those define the question on pairs of values (one type for each pair) and
    send one message. Epsilon, the protocol and n may differ between the groups; of fitted answers
    the unbiased ones are compared. Raises TypeError, ValueError.
    """
    for name, value in (("first", first), ("second", second)):
        checks.instance(name, value, Estimate)
    if first.sampled != second.sampled:
        raise ValueError("first and second must both be of their users, or both of_population()")
    (low, high), (other_low, other_high) = first.limits, second.limits
    stretches = [each.stretch for each in (first, second) if each.stretch]
    covariances = [each.covariance for each in (first, second) if each.covariance]
    return Difference(
        first.centre - second.centre,
        (first.standard_error.square() + second.standard_error.square()).sqrt(),
        first.n + second.n,
        first.bias + second.bias,
        first.parts.joined(second.parts.scaled(-1.0)),
        (low - other_high, high - other_low),
        partial(_widest, stretches) if stretches else None,
        sampled=first.sampled,
        population=partial(_of_populations, first, second),
        covariance=partial(_sum, covariances) if len(covariances) == 2 else None,
    )


def _of_populations(first: Estimate, second: Estimate) -> Difference:
    return difference(first.of_population(), second.of_population())


def _sum(covariances: list[Callable[[], Tensor]]) -> Tensor:
    first, second = covariances
    one = first()
    return one + second().to(one)


@on_host
def _largest(covariance: Tensor, least: Tensor) -> Tensor:
    """P(max_i abs(Z_i) > z), z with 2 P(Z_i > z) = least (*batch), for normal Z of this covariance
    (*batch, m, m).

    With I uniform and Z given abs(Z_I) > z it is m least E 1/#{i: abs(Z_i) > z}: of one relative
    error at all z.
    """
    covariance, p = covariance.cpu(), least.cpu()
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    large = variance > ROUNDING * variance.amax(-1, keepdim=True)
    varied = large.reshape(-1, variance.shape[-1]).any(0)
    covariance = covariance[..., varied, :][
        ..., varied
    ]  # an answer that is known whatever users hold never differs
    m = covariance.shape[-1]
    if not m:
        return torch.ones_like(least)
    scale = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    R = (
        (covariance / scale[..., None] / scale[..., None, :])
        .expand(*p.shape, m, m)
        .reshape(-1, m, m)
    )
    values, vectors = torch.linalg.eigh(R)  # a covariance may be singular
    roots = vectors * values.clamp_min(0).sqrt()[:, None]
    generator = keyed_generator(b"torchdp.collection.any")
    normal = torch.randn(DRAWS, m, dtype=torch.float64, generator=generator)
    uniform = torch.rand(DRAWS, dtype=torch.float64, generator=generator)
    place = torch.randint(m, (DRAWS,), generator=generator)
    draw = torch.arange(DRAWS)
    found = []
    for correlation, root, level in zip(R, roots, p.flatten().tolist(), strict=True):
        tail = min(max(level, 1e-300), 1.0) / 2
        z = -float(ndtri(tail))
        # a normal above z
        beyond = torch.from_numpy(-ndtri((tail * uniform).clamp_min(1e-300).numpy()))
        Z = normal @ root.mT
        Z = Z + (beyond - Z[draw, place])[:, None] * correlation[place]
        # the one that is beyond counts, whatever rounding says
        exceeding = (Z.abs() > z).sum(-1).clamp_min(1)
        found.append(m * level * float((1.0 / exceeding).mean()))
    p = torch.tensor(found, dtype=torch.float64).view(p.shape)
    return p.clamp_max(1.0).to(least)


@on_host
def _widest(stretches: list[Stretch], level: float) -> Tensor:
    """Of a sum of independent errors: it lies between their distributions and the normal one."""
    each = [torch.as_tensor(stretch(level), dtype=torch.float64).cpu() for stretch in stretches]
    return torch.stack(torch.broadcast_tensors(torch.ones(()).double(), *each)).amax(0)


@on_host
def _tails(z: Tensor, stretch: Stretch) -> Tensor:
    """p whose ends lie z normal deviations away, by lines between the logarithms of TAILS, the
    first at least.
    """
    each = [
        torch.as_tensor(quantile(1 - p) * stretch(1 - p), dtype=torch.float64).cpu()
        for p in TAILS.tolist()
    ]
    ends = torch.stack([*(end.expand(z.shape) for end in each), torch.zeros_like(z)])
    logs = torch.cat([TAILS.log(), TAILS.new_zeros(1)])
    place = (ends >= z).sum(0).clamp(1, len(TAILS))
    above, below = (ends.gather(0, (place - back)[None])[0] for back in (1, 0))
    share = ((above - z) / (above - below)).clamp(0, 1)
    return torch.lerp(logs[place - 1], logs[place], share).exp()


def compare(first: Collection | Journal, second: Collection | Journal) -> Difference:
    """``difference`` of the estimates of two collections, or journals, that ask the same question.

    Raises TypeError; ValueError for different subjects, and for a batch that is in both: users who
    count in both groups make the errors dependent (users who answered twice under two batches
    cannot be seen, and must not be). It is about these users;
    ``compare(first, second).of_population()`` about their populations, with p-values.
    """
    first, second = held("first", first), held("second", second)
    if not same(first.protocol.subject, second.protocol.subject):
        raise ValueError(
            "first and second must estimate the same thing: their protocols have different subjects"
        )
    shared = first.batches.items() & second.batches.items()
    if shared:
        raise ValueError(
            f"first and second share {len(shared)} batches, such as {min(shared)[0]!r}: the groups must have no user "
            "in common; paired data need a question about pairs of values"
        )
    return difference(first.estimate(), second.estimate())
