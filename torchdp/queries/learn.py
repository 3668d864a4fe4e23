"""Agnostic PAC learning under local differential privacy: every concept's loss from one message of
each user.

Concept classes are matrices, factored feature by feature.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import factorize
from torchdp.protocol import Crowd, Estimate, Objective, Relay, Tally, Users
from torchdp.protocol.records import single
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, check_client
from torchdp.workloads import parities as parity_workload

MOST_BITS, MOST_ENTRIES = 20, 2**27  # of a record; of a table, 1 GB


@dataclass(frozen=True)
class ConceptClass(Brief):
    """Concepts c(x) = +-1, each of one feature of the record x; a finite domain is a single
    feature, the type.

    tables[j]: (concepts of feature j, values of feature j), entries +-1, float64. names: one for
    each concept, feature by feature. Each table is factored, tables[j] = L_j R_j with gamma_2 norm
    g_j, and a record is encoded as the concatenation of w_j R_j[:, x_j], w_j = g_j^{1/2}: concept i
    of feature j is read off by L_ji / w_j, and (largest norm of a code)^2 (largest norm of a
    reader)^2 = sum_j g_j^2, the rule of product domains (Nikolov, Tang 2023, Lemma 60). Labels come
    in as signs: (x, y) has the code y code(x).
    """

    names: tuple[str, ...]
    tables: tuple[Tensor, ...]
    tol: float = 1e-3

    def __post_init__(self) -> None:
        checks.own(self)
        given = checks.instance("tables", self.tables, (tuple, list))
        tables = [checks.matrix("tables", table) for table in given]
        if not tables or any(
            table.ndim != 2 or not bool((table.abs() == 1).all()) for table in tables
        ):
            raise ValueError(
                "tables must be matrices of +1 and -1, one row for each concept, at least one of them"
            )
        object.__setattr__(self, "tables", tuple(table.detach().double() for table in tables))
        object.__setattr__(
            self, "names", tuple(checks.instance("names", self.names, (tuple, list)))
        )
        checks.keep(self, tol=checks.positive)
        if len(self.names) != sum(len(table) for table in self.tables):
            raise ValueError(
                f"names must hold {sum(len(t) for t in self.tables)} names, one for each concept, not {len(self.names)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        found = [factorize(table, tol=self.tol) for table in self.tables]
        weights = [float(f.certificate.upper) ** 0.5 for f in found]
        return tuple((f.left / w, w * f.right) for f, w in zip(found, weights, strict=True))

    @cached_property
    def readers(self) -> Tensor:
        """(concepts, dim), block diagonal: concept i's correlation with the labels is <readers_i,
        mean code>.
        """
        return torch.block_diag(*(left for left, _ in self._factors))

    @property
    def dim(self) -> int:
        """Length of a record's code."""
        return self.readers.shape[1]

    @cached_property
    def radius(self) -> float:
        """Largest norm of a code."""
        return math.sqrt(sum(float(right.square().sum(0).max()) for _, right in self._factors))

    @property
    def norm(self) -> float:
        """radius * (largest norm of a reader): the factorization norm that the error scales
        with.
        """
        return self.radius * float(self.readers.norm(dim=1).max())

    def records(self, x: Tensor, name: str = "records") -> Tensor:
        """``x`` as (n, features) values within the tables; (n,) is one feature. Raises TypeError,
        ValueError.
        """
        x = x[:, None] if isinstance(x, Tensor) and x.ndim == 1 else x
        x = checks.shaped(
            name, checks.integers(name, x), "n", len(self.tables), note=" with n >= 1"
        )
        columns = zip(x.mT, self.tables, strict=True)
        return torch.stack(
            [checks.indices(name, values, table.shape[1]) for values, table in columns], 1
        )

    def codes(self, x: Tensor) -> Tensor:
        """Codes of records (n, features): (n, dim). Raises TypeError, ValueError."""
        x = self.records(x)
        return torch.cat([right.mT[x[:, j]] for j, (_, right) in enumerate(self._factors)], 1)

    def predict(self, x: Tensor, concepts: Tensor | int) -> Tensor:
        """c(x) for every record and the given concept (or concepts): (n,) or (n, len(concepts)).

        Raises TypeError, ValueError.
        """
        x = self.records(x)
        given = (
            torch.tensor(checks.integer("concepts", concepts, 0), dtype=torch.int64)
            if isinstance(concepts, int)
            else concepts
        )
        wanted = checks.indices("concepts", given, len(self)).reshape(-1)
        every = [(row, j) for j, table in enumerate(self.tables) for row in table]
        columns = []
        for i in wanted.tolist():
            row, feature = every[i]
            columns.append(row[x[:, feature]])
        return columns[0] if given.ndim == 0 else torch.stack(columns, 1)

    def losses(self, x: Tensor, labels: Tensor, counts: Tensor | None = None) -> Tensor:
        """Exact, not private: the fraction of records that each concept misclassifies, (concepts,).

        counts: how many users hold each record, (n,); one where not given. Raises TypeError,
        ValueError.
        """
        x = self.records(x)
        labels = check_labels(labels, x)
        weights = torch.ones_like(labels) if counts is None else counts.to(labels)
        parts = []
        for j, table in enumerate(self.tables):
            signed = labels.new_zeros(table.shape[1]).index_add_(0, x[:, j], weights * labels)
            parts.append((1 - table @ signed / weights.sum()) / 2)
        return torch.cat(parts)


def check_labels(labels: Tensor, x: Tensor) -> Tensor:
    """``labels``, +1 or -1 for each of the records x, as float64. Raises TypeError, ValueError."""
    labels = checks.real("labels", labels).double()
    if labels.shape != x.shape[:1] or not bool((labels.abs() == 1).all()):
        raise ValueError(f"labels must be +1 or -1, of shape ({len(x)},)")
    return labels


def thresholds(k: int) -> ConceptClass:
    """c_t(x) = +1 where x >= t, -1 below, on [0, k), for t = 0, ..., k - 1, and their negatives."""
    k = checks.integer("k", k, 2)
    table = _threshold_table(k)
    names = [f"x >= {t}" for t in range(k)] + [f"x < {t}" for t in range(1, k)]
    return ConceptClass(tuple(names), (table,))


def parities(d: int, order: int) -> ConceptClass:
    """Parities of at most ``order`` of d bits, on types that code the bits: sqrt(number of
    concepts) is their norm.
    """
    _check_bits("parities", d, order)
    table = parity_workload(d, order).dense()
    return ConceptClass(tuple(f"parity {i}" for i in range(len(table))), (table,))


def conjunctions(d: int, order: int) -> ConceptClass:
    """+1 where all bits of a set of at most ``order`` of d bits are 1, -1 elsewhere, on types that
    code the bits.
    """
    _check_bits("conjunctions", d, order)
    bits = (torch.arange(2**d)[:, None] >> torch.arange(d)) & 1
    sets = bits[bits.sum(1) <= order]
    held = (sets.double() @ bits.double().T) == sets.sum(1, keepdim=True)
    names = ["always"] + [
        " and ".join(f"bit {j}" for j in range(d) if s[j]) for s in sets.tolist() if sum(s)
    ]
    return ConceptClass(tuple(names), (2 * held.double() - 1,))


def stumps(sizes: Sequence[int], names: Sequence[str] | None = None) -> ConceptClass:
    """Decision stumps: thresholds, both ways, on each of several features; sizes[j]: values of
    feature j.
    """
    checks.instance("sizes", sizes, Sequence)
    sizes = [checks.integer("sizes", k, 2) for k in sizes]
    names = [f"feature {j}" for j in range(len(sizes))] if names is None else list(names)
    if len(names) != len(sizes):
        raise ValueError(
            f"names must hold {len(sizes)} names, one for each feature, not {len(names)}"
        )
    labels = [
        f"{name} {sign} {t}"
        for name, k in zip(names, sizes, strict=True)
        for sign in (">=", "<")
        for t in range(1, k)
    ]
    tables = [_threshold_table(k)[1:] for k in sizes]
    return ConceptClass(tuple(labels), tuple(tables))


def _check_bits(name: str, d: int, order: int) -> None:
    """Refuses d or order, and more concepts of so many of d bits than a table may hold."""
    checks.integer("d", d, 1, MOST_BITS)
    checks.integer("order", order, 0)
    concepts = sum(math.comb(d, i) for i in range(min(d, order) + 1))
    checks.fits(name, concepts, 2**d, most=MOST_ENTRIES)


def _threshold_table(k: int) -> Tensor:
    """Rows t = 0, ..., k - 1 of "x >= t", then t = 1, ..., k - 1 of "x < t"."""
    checks.fits("thresholds", 2 * k - 1, k, most=MOST_ENTRIES)
    at_least = 2.0 * (torch.arange(k) >= torch.arange(k)[:, None]).double() - 1
    return torch.cat([at_least, -at_least[1:]])


@dataclass(frozen=True, eq=False)
class Learned:
    """The concept of least estimated loss.

    concept: its index; losses: of all concepts, unbiased. half_width(failure): all estimates are
    that close to the users' true losses. The chosen concept's estimate is the least of many, and so
    too small on average: half_width accounts for that.
    """

    concept: int
    name: str
    losses: Estimate
    proxy: float

    @property
    def loss(self) -> float:
        """Estimated loss of the concept."""
        return float(self.losses.value[self.concept])

    def half_width(self, failure: float = 0.05, population: bool = False) -> float:
        """h such that with probability 1 - failure every estimate is within h of the loss on these
        users.

        The concept's loss is then within 2 h of the least. population: of the loss on the
        distribution that the users are a sample of; half of ``failure`` goes to Hoeffding's bound
        for the sample.
        """
        failure, n = checks.fraction("failure", failure), self.losses.n
        count = 2 * len(self.losses.value)
        if not population:
            return math.sqrt(2 * self.proxy * math.log(count / failure) / n)
        noise = math.sqrt(2 * self.proxy * math.log(2 * count / failure) / n)
        return noise + math.sqrt(math.log(2 * count / failure) / (2 * n))


@dataclass(frozen=True, eq=False)
class PrivateLearner(Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends y code(record) through a randomizer of the ball; the analyst reads off every
    concept's loss.

    loss of concept i = 1/2 - <readers_i, mean of y code(record)>/2. Its variance over the noise is
    ||readers_i||^2 v / (4 n), v the randomizer's; one message of each user serves all concepts. The
    estimate is of all losses, (concepts,); ``best`` makes a concept of it.

    x: (n, features + 1) integers, a record and its label, +1 or -1, in each row.
    concepts: the class. client: what users run, of the codes' dimension, its radius at least
    theirs; ``calibrated`` makes one, whose epsilon is each user's whole budget, for record and
    label together. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user: exactly epsilon-LDP.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 24.
    """

    concepts: ConceptClass
    client: BallRandomizer

    def __post_init__(self) -> None:
        concepts = checks.instance("concepts", self.concepts, ConceptClass)
        check_client(self.client, concepts.dim, concepts.radius)

    @classmethod
    def calibrated(cls, concepts: ConceptClass, *, epsilon: float) -> "PrivateLearner":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = checks.instance("concepts", concepts, ConceptClass).radius * (1 + 1e-12)
        return cls(concepts, PrivUnit(concepts.dim, epsilon, radius))

    @property
    def held(self) -> tuple[int]:
        return (len(self.concepts.tables) + 1,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, features + 1) int64, the last column +1 or -1, n >= 1. Raises TypeError,
        ValueError.
        """
        wanted = ": a record and its label, +1 or -1"
        x = checks.shaped("x", checks.integers("x", x), "n", *self.held, note=wanted)
        if not bool((x[:, -1].abs() == 1).all()):
            raise ValueError(f"x must hold rows{wanted}; some label is neither")
        records = self.concepts.records(x[:, :-1], "x")
        return torch.cat([records, x[:, -1:].to(torch.int64)], 1)

    def client_input(self, x: Tensor) -> Tensor:
        """y code(record), (n, dim)."""
        return x[:, -1:].double() * self.concepts.codes(x[:, :-1])

    def analyse(self, tally: Tally) -> Estimate:
        """The losses; the standard error is that of the worst records."""
        value = (1 - self.check(tally)["sum"] / tally.users(1) @ self.concepts.readers.mT) / 2
        return Estimate(value, (self.variance / tally.users(1)).sqrt().expand_as(value), tally.n)

    def best(self, losses: Estimate) -> Learned:
        """The concept of least estimated loss. Raises TypeError, ValueError for what ``estimate``
        does not give.
        """
        if checks.instance("losses", losses, Estimate).value.shape != (len(self.concepts),):
            raise ValueError(
                f"losses must hold one for each of the {len(self.concepts)} concepts, not {tuple(losses.value.shape)}"
            )
        at = int(losses.value.argmin())
        return Learned(at, self.concepts.names[at], losses, self.proxy)

    def validate_summary(self, summary: Crowd) -> Crowd:
        crowd = super().validate_summary(summary)
        single(crowd.n)
        return crowd

    def exact(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        return self.concepts.losses(crowd.values[:, :-1], crowd.values[:, -1], crowd.counts)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        moments = self.client.moments
        readers = self.concepts.readers
        squares = (self.client_input(crowd.values) @ readers.mT).square()
        along = crowd.counts.double() @ squares / crowd.n
        return (moments.variance * readers.square().sum(1) + moments.outer * along) / (4 * crowd.n)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """(): exact for an isotropic randomizer, else a bound."""
        return checks.instance("objective", objective, Objective).of(
            self.variance / checks.integer("n", n, 1)
        )

    @property
    def variance(self) -> Tensor:
        """n times the variance of each loss estimate, at its largest over records: (concepts,)."""
        each = (
            self.client.moments.variance
            + max(0.0, self.client.moments.outer) * self.client.radius**2
        )
        return each * self.concepts.readers.square().sum(1) / 4

    @property
    def proxy(self) -> float:
        """n times the variance proxy of the worst loss estimate: P(error > t) <= 2
        exp(-n t^2 / (2 proxy)).
        """
        return (
            self.client.subgaussian.proxy * float(self.concepts.readers.square().sum(1).max()) / 4
        )

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom, for any distribution of records, the concept's loss exceeds the least by
        at most alpha and its estimate has error at most alpha / 2, with probability 1 - failure.

        Guarantees: that many users are enough, by the sub-Gaussian bound, Hoeffding's, and the
        union over concepts.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 24, with its constants.
        """
        alpha, failure = checks.squarable("alpha", alpha), checks.fraction("failure", failure)
        log = math.log(4 * len(self.concepts) / failure)
        width = (math.sqrt(2 * self.proxy) + math.sqrt(0.5)) * math.sqrt(log)
        return math.ceil((2 * width / alpha) ** 2)
