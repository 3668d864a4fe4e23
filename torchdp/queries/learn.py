"""Agnostic PAC learning under local differential privacy: all losses from one message of a user.

Concept classes are matrices, factored feature by feature.

Notation: tables[j], (concepts, values) of feature j, entries +-1; tables[j] = L_j R_j; w_j, the
weight of feature j in a code.
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

# Bits of a record of parities or conjunctions.
MOST_BITS = 20

# Entries of a table: 1 GB.
MOST_ENTRIES = 2**27

SIGNS = "tables must be matrices of +1 and -1, one row for each concept, at least one of them"


@dataclass(frozen=True)
class ConceptClass(Brief):
    """Concepts c(x) = +-1, each of one feature of the record x.

    A finite domain is a single feature, the type. Each table is factored, tables[j] = L_j R_j with
    gamma_2 norm g_j, and a record is encoded as the concatenation of w_j R_j[:, x_j], w_j =
    g_j^{1/2}: concept i of feature j is read off by L_ji / w_j, and (largest norm of a code)^2
    (largest norm of a reader)^2 = sum_j g_j^2, the rule of product domains (Nikolov, Tang 2023,
    Lemma 60). Labels come in as signs: (x, y) has the code y code(x).

    Args:
        names: one for each concept, feature by feature.
        tables: (concepts of feature j, values of feature j), entries +-1, float64.
        tol: relative gap of the factorizations.
    """

    names: tuple[str, ...]
    tables: tuple[Tensor, ...]
    tol: float = 1e-3

    def __post_init__(self) -> None:
        checks.own(self)
        tables = []
        for table in checks.instance("tables", self.tables, (tuple, list)):
            signs = checks.matrix("tables", table).detach().double()
            if signs.ndim != 2 or not (signs.abs() == 1).all():
                raise ValueError(SIGNS)
            tables.append(signs)
        if not tables:
            raise ValueError(SIGNS)
        names = tuple(checks.instance("names", self.names, (tuple, list)))
        object.__setattr__(self, "tables", tuple(tables))
        object.__setattr__(self, "names", names)
        checks.keep(self, tol=checks.positive)
        concepts = sum(len(table) for table in tables)
        if len(names) != concepts:
            raise ValueError(
                f"names must hold {concepts} names, one for each concept, not {len(names)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """(L_j / w_j, w_j R_j) of each feature."""
        factors = []
        for table in self.tables:
            found = factorize(table, tol=self.tol)
            # Readers of all features then have norm 1 at most, codes of feature j norm g_j.
            weight = float(found.certificate.upper) ** 0.5
            factors.append((found.left / weight, weight * found.right))
        return tuple(factors)

    @cached_property
    def readers(self) -> Tensor:
        """(concepts, dim): the correlation of concept i and labels is <readers_i, mean code>."""
        return torch.block_diag(*(left for left, _ in self._factors))

    @property
    def dim(self) -> int:
        """Length of a record's code."""
        return self.readers.shape[1]

    @cached_property
    def radius(self) -> float:
        """Largest norm of a code."""
        squares = [right.square().sum(0) for _, right in self._factors]
        return math.sqrt(sum(float(square.max()) for square in squares))

    @property
    def norm(self) -> float:
        """radius * (largest norm of a reader): the norm that the error scales with."""
        return self.radius * float(self.readers.norm(dim=1).max())

    def records(self, x: Tensor, name: str = "records") -> Tensor:
        """``x`` as (n, features) values within the tables; (n,) is one feature.

        Raises TypeError, ValueError.
        """
        if isinstance(x, Tensor) and x.ndim == 1:
            x = x[:, None]
        x = checks.integers(name, x)
        checks.beside(name, x, "the class of concepts", self.tables[0].device)
        x = checks.shaped(name, x, "n", len(self.tables), note=" with n >= 1")
        columns = []
        for values, table in zip(x.mT, self.tables, strict=True):
            columns.append(checks.indices(name, values, table.shape[1]))
        return torch.stack(columns, 1)

    def codes(self, x: Tensor) -> Tensor:
        """Codes of records (n, features): (n, dim). Raises TypeError, ValueError."""
        x = self.records(x)
        return torch.cat([right.mT[x[:, j]] for j, (_, right) in enumerate(self._factors)], 1)

    def predict(self, x: Tensor, concepts: Tensor | int) -> Tensor:
        """c(x) for every record and the given concept (or concepts): (n,) or (n, len(concepts)).

        Raises TypeError, ValueError.
        """
        x = self.records(x)
        if isinstance(concepts, int):
            concepts = torch.tensor(checks.integer("concepts", concepts, 0), dtype=torch.int64)
        concepts = checks.indices("concepts", concepts, len(self))
        rows = [(row, j) for j, table in enumerate(self.tables) for row in table]
        columns = []
        for concept in concepts.flatten().tolist():
            row, feature = rows[concept]
            columns.append(row[x[:, feature]])
        return columns[0] if concepts.ndim == 0 else torch.stack(columns, 1)

    def losses(self, x: Tensor, labels: Tensor, counts: Tensor | None = None) -> Tensor:
        """Exact, not private: the fraction of records that each concept misclassifies, (concepts,).

        counts: how many users hold each record, (n,); one where not given. Raises TypeError,
        ValueError.
        """
        x = self.records(x)
        labels = check_labels(labels, x)
        weights = torch.ones_like(labels) if counts is None else counts.to(labels)
        losses = []
        for j, table in enumerate(self.tables):
            signed = labels.new_zeros(table.shape[1])
            signed.index_add_(0, x[:, j], weights * labels)
            # The correlation with the labels is 1 less twice the loss.
            losses.append((1 - table @ signed / weights.sum()) / 2)
        return torch.cat(losses)


def check_labels(labels: Tensor, x: Tensor) -> Tensor:
    """``labels``, +1 or -1 for each of the records x, as float64. Raises TypeError, ValueError."""
    labels = checks.real("labels", labels).double()
    if labels.shape != x.shape[:1] or not (labels.abs() == 1).all():
        raise ValueError(f"labels must be +1 or -1, of shape ({len(x)},)")
    return labels


def thresholds(k: int) -> ConceptClass:
    """c_t(x) = +1 where x >= t, -1 below, on [0, k), for t = 0, ..., k - 1, and their negatives."""
    k = checks.integer("k", k, 2)
    table = _threshold_table(k)  # it refuses what is too large before any name is made
    names = [f"x >= {t}" for t in range(k)]
    names += [f"x < {t}" for t in range(1, k)]
    return ConceptClass(tuple(names), (table,))


def parities(d: int, order: int) -> ConceptClass:
    """Parities of at most ``order`` of d bits, on types that code the bits.

    Their norm is sqrt(number of concepts).
    """
    _check_bits("parities", d, order)
    table = parity_workload(d, order).dense()
    return ConceptClass(tuple(f"parity {i}" for i in range(len(table))), (table,))


def conjunctions(d: int, order: int) -> ConceptClass:
    """+1 where all bits of a set of at most ``order`` of d bits are 1, -1 elsewhere.

    On types that code the bits.
    """
    _check_bits("conjunctions", d, order)
    bits = (torch.arange(2**d)[:, None] >> torch.arange(d)) & 1
    sets = bits[bits.sum(1) <= order]
    common = sets.double() @ bits.double().mT
    table = 2 * (common == sets.sum(1, keepdim=True)).double() - 1
    names = []
    for members in sets.tolist():
        chosen = [f"bit {j}" for j, member in enumerate(members) if member]
        names.append(" and ".join(chosen) or "always")
    return ConceptClass(tuple(names), (table,))


def stumps(sizes: Sequence[int], names: Sequence[str] | None = None) -> ConceptClass:
    """Decision stumps: thresholds, both ways, on each of several features.

    sizes[j]: values of feature j. names: of the features.
    """
    checks.instance("sizes", sizes, Sequence)
    sizes = [checks.integer("sizes", k, 2) for k in sizes]
    names = [f"feature {j}" for j in range(len(sizes))] if names is None else list(names)
    if len(names) != len(sizes):
        raise ValueError(
            f"names must hold {len(sizes)} names, one for each feature, not {len(names)}"
        )
    labels = []
    for name, k in zip(names, sizes, strict=True):
        labels += [f"{name} {sign} {t}" for sign in (">=", "<") for t in range(1, k)]
    # The first row, always +1, would be the same concept for every feature.
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
    x = torch.arange(k)
    at_least = 2.0 * (x >= x[:, None]).double() - 1
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
        """h: with probability 1 - failure every estimate is within h of the loss on these users.

        The concept's loss is then within 2 h of the least. population: of the loss on the
        distribution that the users are a sample of; half of ``failure`` goes to Hoeffding's bound
        for the sample.
        """
        failure = checks.fraction("failure", failure)
        n = self.losses.n
        # Each of the losses has two tails.
        tails = 2 * len(self.losses.value)
        if not population:
            return math.sqrt(2 * self.proxy * math.log(tails / failure) / n)
        log = math.log(2 * tails / failure)
        noise = math.sqrt(2 * self.proxy * log / n)
        return noise + math.sqrt(log / (2 * n))


@dataclass(frozen=True, eq=False)
class PrivateLearner(Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends y code(record) by a randomizer of the ball; all losses are read off the mean.

    loss of concept i = 1/2 - <readers_i, mean of y code(record)>/2. Its variance over the noise is
    ||readers_i||^2 v / (4 n), v the randomizer's; one message of each user serves all concepts. The
    estimate is of all losses, (concepts,); ``best`` makes a concept of it.

    x: (n, features + 1) integers, a record and its label, +1 or -1, in each row.

    Args:
        concepts: the class.
        client: what users run, of the codes' dimension, its radius at least theirs; ``calibrated``
            makes one, whose epsilon is each user's whole budget, for record and label together.

    Raises ValueError, TypeError.

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
        checks.instance("concepts", concepts, ConceptClass)
        # Rounding must leave no code outside of the ball.
        radius = concepts.radius * (1 + 1e-12)
        return cls(concepts, PrivUnit(concepts.dim, epsilon, radius))

    @property
    def held(self) -> tuple[int]:
        return (len(self.concepts.tables) + 1,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, features + 1) int64, the last column +1 or -1, n >= 1.

        Raises TypeError, ValueError.
        """
        wanted = ": a record and its label, +1 or -1"
        x = checks.shaped("x", checks.integers("x", x), "n", *self.held, note=wanted)
        labels = x[:, -1:]
        if not (labels.abs() == 1).all():
            raise ValueError(f"x must hold rows{wanted}; some label is neither")
        records = self.concepts.records(x[:, :-1], "x")
        return torch.cat([records, labels.long()], 1)

    def client_input(self, x: Tensor) -> Tensor:
        """y code(record), (n, dim)."""
        labels = x[:, -1:].double()
        return labels * self.concepts.codes(x[:, :-1])

    def analyse(self, tally: Tally) -> Estimate:
        """The losses; the standard error is that of the worst records."""
        sums = self.check(tally)["sum"]
        n = tally.users(1)
        correlations = sums / n @ self.concepts.readers.mT
        value = (1 - correlations) / 2
        standard_error = (self.variance / n).sqrt()
        return Estimate(value, standard_error.expand_as(value), tally.n)

    def best(self, losses: Estimate) -> Learned:
        """The concept of least estimated loss.

        Raises TypeError, ValueError for what ``estimate`` does not give.
        """
        value = checks.instance("losses", losses, Estimate).value
        if value.shape != (len(self.concepts),):
            raise ValueError(
                f"losses must hold one for each of the {len(self.concepts)} concepts, not "
                f"{tuple(value.shape)}"
            )
        concept = int(value.argmin())
        return Learned(concept, self.concepts.names[concept], losses, self.proxy)

    def validate_summary(self, summary: Crowd) -> Crowd:
        crowd = super().validate_summary(summary)
        # Losses count the users of one crowd, not of a batch.
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
        return (moments.variance * self._squared_norms + moments.outer * along) / (4 * crowd.n)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """(): exact for an isotropic randomizer, else a bound."""
        return objective.of(self.variance / single(n))

    @property
    def _squared_norms(self) -> Tensor:
        """||readers_i||^2, (concepts,)."""
        return self.concepts.readers.square().sum(1)

    @property
    def variance(self) -> Tensor:
        """n times the variance of each loss estimate, at its largest over records: (concepts,)."""
        moments = self.client.moments
        # Less noise along a code is no gain for a reader across it: only more of it counts.
        message = moments.variance + max(0.0, moments.outer) * self.client.radius**2
        return message * self._squared_norms / 4

    @property
    def proxy(self) -> float:
        """n times the worst estimate's variance proxy: P(error > t) <= 2 exp(-n t^2/(2 proxy))."""
        return self.client.subgaussian.proxy * float(self._squared_norms.max()) / 4

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom the chosen concept's loss exceeds the least by at most alpha.

        And its estimate has error at most alpha / 2, with probability 1 - failure, for any
        distribution of records.

        Guarantees: that many users are enough, by the sub-Gaussian bound, Hoeffding's, and the
        union over concepts.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 24, with its constants.
        """
        alpha = checks.squarable("alpha", alpha)
        failure = checks.fraction("failure", failure)
        # Two tails of the noise and two of the sample for each concept.
        log = math.log(4 * len(self.concepts) / failure)
        width = (math.sqrt(2 * self.proxy) + math.sqrt(0.5)) * math.sqrt(log)
        return math.ceil((2 * width / alpha) ** 2)
