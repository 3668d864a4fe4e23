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
# of a variance, relative to the largest
ROUNDING = 1e-12
# of the chance that the largest of several errors is beyond z
DRAWS = 2**13
# below it a float64 quantile of the normal distribution is of no use
LEAST_TAIL = 1e-300
# p-values at which an error that is not normal is computed
TAILS = torch.logspace(-12, 0, 73, dtype=torch.float64, device="cpu")[:-1]


class Difference(Estimate):
    """The first group's answer less the second's; as private as the two estimates.

    n: users of both groups. Its interval is about these users, over the privacy noise alone: two
    groups of a population
    seldom have equal means. That of ``of_population()`` is about the two populations from which
    they are samples, and only it has a p-value.
    """

    @property
    def p_value(self) -> Tensor:
        """Two-sided, of the hypothesis that the populations' difference is 0.

        ``interval(1 - p)`` ends at 0. Of each answer by itself: the least of several is no p-value,
        ``any`` is. Raises AttributeError for a difference of these users.
        """
        if not self.sampled:
            raise AttributeError(
                "a difference of these users has an interval, but no p-value: take it from "
                ".of_population(), whose error counts that the users are samples"
            )
        return self._p_value()

    @on_host
    def _p_value(self) -> Tensor:
        # The least z whose interval, widened by the bias, holds 0: p is the chance beyond it.
        z = self.parts.distance(self.value, self.bias).cpu()
        normal = torch.as_tensor(2 * ndtr(-z.numpy()), dtype=torch.float64)
        p = normal if self.stretch is None else _tails(z, self.stretch)
        return p.to(self.value.device, torch.float64)

    def any(self) -> Tensor:
        """p, (*batch), of the hypothesis that no answer differs (last dimension).

        Of the largest z of all of them: by the errors' covariance where it is known, else by
        Sidak's inequality, which holds for all. Raises AttributeError as ``p_value``.
        Source: Sidak (1967); Adler, Blanchet, Liu (2012), section 3, for the chance of a maximum.
        """
        values = checks.shaped("p_value", self.p_value, ..., "answers")
        least = values.amin(-1)
        if self.covariance is None:
            # 1 - (1 - p)^m; the logarithm of 0 times m would be no number
            surviving = torch.log1p(-least.clamp_max(1 - 1e-16))
            return -torch.expm1(values.shape[-1] * surviving)
        return _largest(self.covariance().to(least), least)


def difference(first: Estimate, second: Estimate) -> Difference:
    """The difference of the estimates of two groups that have no user in common.

    It is about these users where the two estimates are, and ``of_population()`` about the
    populations from which they were drawn: that one has p-values. Each group has noise of its own.
    Not for paired data, where a user has a value under each of two conditions: the two errors are
    then dependent. For those define the question on pairs of values (one type for each pair) and
    send one message. Epsilon, the protocol and n may differ between the groups; of fitted answers
    the unbiased ones are compared. Raises TypeError, ValueError.
    """
    checks.instance("first", first, Estimate)
    checks.instance("second", second, Estimate)
    if first.sampled != second.sampled:
        raise ValueError("first and second must both be of their users, or both of_population()")
    low, high = first.limits
    other_low, other_high = second.limits
    variance = first.standard_error.square() + second.standard_error.square()
    stretches = [stretch for stretch in (first.stretch, second.stretch) if stretch is not None]
    # Known only where both are: else ``any`` falls back on Sidak's inequality.
    covariance = None
    if first.covariance is not None and second.covariance is not None:
        covariance = partial(_sum, first.covariance, second.covariance)
    return Difference(
        first.centre - second.centre,
        variance.sqrt(),
        first.n + second.n,
        bias=first.bias + second.bias,
        error=first.parts.joined(second.parts.scaled(-1.0)),
        limits=(low - other_high, high - other_low),
        stretch=partial(_widest, stretches) if stretches else None,
        sampled=first.sampled,
        population=partial(_of_populations, first, second),
        covariance=covariance,
    )


def _of_populations(first: Estimate, second: Estimate) -> Difference:
    return difference(first.of_population(), second.of_population())


def _sum(first: Callable[[], Tensor], second: Callable[[], Tensor]) -> Tensor:
    covariance = first()
    return covariance + second().to(covariance)


@on_host
def _largest(covariance: Tensor, least: Tensor) -> Tensor:
    """P(max_i abs(Z_i) > z), z with 2 P(Z_i > z) = least, for normal Z of this covariance.

    With I uniform and Z given abs(Z_I) > z it is m least E 1/#{i: abs(Z_i) > z}: of one relative
    error at all z.

    Args:
        covariance: (*batch, m, m).
        least: (*batch), in (0, 1].
    """
    R = _correlations(covariance.cpu())
    m = R.shape[-1]
    if not m:
        return torch.ones_like(least)
    R = R.expand(*least.shape, m, m).reshape(-1, m, m)
    # A root by eigenvectors: a covariance may be singular.
    values, vectors = torch.linalg.eigh(R)
    roots = vectors * values.clamp_min(0).sqrt()[:, None]
    # A fixed stream: equal estimates have equal p-values at every call.
    generator = keyed_generator(b"torchdp.collection.any")
    normal = torch.randn(DRAWS, m, dtype=torch.float64, generator=generator)
    uniform = torch.rand(DRAWS, dtype=torch.float64, generator=generator)
    chosen = torch.randint(m, (DRAWS,), generator=generator)
    draw = torch.arange(DRAWS)
    chances = []
    for correlation, root, p in zip(R, roots, least.flatten().tolist(), strict=True):
        tail = min(max(p, LEAST_TAIL), 1.0) / 2
        z = -float(ndtri(tail))
        # Z_I given that it is above z, by inversion; the others follow it by their correlation
        upper = (tail * uniform).clamp_min(LEAST_TAIL)
        above = torch.from_numpy(-ndtri(upper.numpy()))
        Z = normal @ root.mT
        Z = Z + (above - Z[draw, chosen])[:, None] * correlation[chosen]
        # Z_I itself counts, whatever rounding says
        exceeding = (Z.abs() > z).sum(-1).clamp_min(1)
        chances.append(m * p * float((1.0 / exceeding).mean()))
    result = torch.tensor(chances, dtype=torch.float64).view(least.shape)
    return result.clamp_max(1.0).to(least)


def _correlations(covariance: Tensor) -> Tensor:
    """The correlations of answers that can differ: what is known whatever users hold never does."""
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    large = variance > ROUNDING * variance.amax(-1, keepdim=True)
    varied = large.reshape(-1, variance.shape[-1]).any(0)
    covariance = covariance[..., varied, :][..., varied]
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    scale = variance.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    return covariance / scale[..., None] / scale[..., None, :]


@on_host
def _widest(stretches: list[Stretch], level: float) -> Tensor:
    """Of a sum of independent errors: it lies between their distributions and the normal one."""
    # the normal one has stretch 1
    values = [torch.ones((), dtype=torch.float64)]
    for stretch in stretches:
        values.append(torch.as_tensor(stretch(level), dtype=torch.float64).cpu())
    return torch.stack(torch.broadcast_tensors(*values)).amax(0)


@on_host
def _tails(z: Tensor, stretch: Stretch) -> Tensor:
    """p whose ends lie z normal deviations away, by lines between the logarithms of TAILS."""
    ends = []
    for p in TAILS.tolist():
        end = torch.as_tensor(quantile(1 - p) * stretch(1 - p), dtype=torch.float64)
        ends.append(end.cpu().expand(z.shape))
    ends.append(torch.zeros_like(z))
    table = torch.stack(ends)
    logs = torch.cat([TAILS.log(), TAILS.new_zeros(1)])
    # Ends fall as p rises, so that those which are not below z come first.
    place = (table >= z).sum(0).clamp(1, len(TAILS))
    above = table.gather(0, (place - 1)[None])[0]
    below = table.gather(0, place[None])[0]
    share = ((above - z) / (above - below)).clamp(0, 1)
    return torch.lerp(logs[place - 1], logs[place], share).exp()


def compare(first: Collection | Journal, second: Collection | Journal) -> Difference:
    """``difference`` of the estimates of two collections, or journals, that ask the same question.

    Raises TypeError; ValueError for different subjects, and for a batch that is in both: users who
    count in both groups make the errors dependent (users who answered twice under two batches
    cannot be seen, and must not be). It is about these users;
    ``compare(first, second).of_population()`` about their populations, with p-values.
    """
    first = held("first", first)
    second = held("second", second)
    if not same(first.protocol.subject, second.protocol.subject):
        raise ValueError(
            "first and second must estimate the same thing: their protocols have different subjects"
        )
    # By name and content: both groups may have a batch of the name "monday".
    shared = first.batches.items() & second.batches.items()
    if shared:
        raise ValueError(
            f"first and second share {len(shared)} batches, such as {min(shared)[0]!r}: the groups "
            "must have no user in common; paired data need a question about pairs of values"
        )
    return difference(first.estimate(), second.estimate())
