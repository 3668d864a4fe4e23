"""Concept classes as matrices, factored feature by feature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import factorize
from torchdp.workloads import parities as parity_workload

MOST_BITS, MOST_ENTRIES = 20, 2**27  # of a record; of a table, 1 GB


@dataclass(frozen=True)
class ConceptClass(Brief):
    """Concepts c(x) = +-1, each of one feature of the record x; a finite domain is a single feature, the type.

    tables[j]: (concepts of feature j, values of feature j), entries +-1, float64. names: one for each concept, feature
    by feature. Each table is factored, tables[j] = L_j R_j with gamma_2 norm g_j, and a record is encoded as the
    concatenation of w_j R_j[:, x_j], w_j = g_j^{1/2}: concept i of feature j is read off by L_ji / w_j, and
    (largest norm of a code)^2 (largest norm of a reader)^2 = sum_j g_j^2, the rule of product domains (Nikolov, Tang
    2023, Lemma 60). Labels come in as signs: (x, y) has the code y code(x).
    """

    names: tuple[str, ...]
    tables: tuple[Tensor, ...]
    tol: float = 1e-3

    def __post_init__(self) -> None:
        checks.own(self)
        given = checks.instance("tables", self.tables, (tuple, list))
        tables = [checks.matrix("tables", table) for table in given]
        if not tables or any(table.ndim != 2 or not bool((table.abs() == 1).all()) for table in tables):
            raise ValueError(
                "tables must be matrices of +1 and -1, one row for each concept, at least one of them"
            )
        object.__setattr__(self, "tables", tuple(table.detach().double() for table in tables))
        object.__setattr__(self, "names", tuple(checks.instance("names", self.names, (tuple, list))))
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
        """(concepts, dim), block diagonal: concept i's correlation with the labels is <readers_i, mean code>."""
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
        """radius * (largest norm of a reader): the factorization norm that the error scales with."""
        return self.radius * float(self.readers.norm(dim=1).max())

    def records(self, x: Tensor) -> Tensor:
        """``x`` as (n, features) values within the tables; (n,) is one feature. Raises TypeError, ValueError."""
        x = x[:, None] if isinstance(x, Tensor) and x.ndim == 1 else x
        if checks.instance("records", x, Tensor).ndim != 2 or x.shape[1] != len(self.tables) or len(x) == 0:
            raise ValueError(f"records must be integers of shape (n, {len(self.tables)}) with n >= 1")
        each = [checks.indices("records", x[:, j], table.shape[1]) for j, table in enumerate(self.tables)]
        return torch.stack(each, 1)

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
        wanted = checks.indices("concepts", given, len(self)).cpu().reshape(-1)
        offsets = torch.tensor([0, *(len(table) for table in self.tables)], dtype=torch.int64).cumsum(0)
        feature = torch.searchsorted(offsets, wanted, right=True) - 1
        columns = [
            self.tables[j][i - offsets[j]][x[:, j]] for i, j in zip(wanted.tolist(), feature.tolist(), strict=True)
        ]
        return columns[0] if given.ndim == 0 else torch.stack(columns, 1)

    def losses(self, x: Tensor, labels: Tensor, counts: Tensor | None = None) -> Tensor:
        """Exact, not private: the fraction of records that each concept misclassifies, (concepts,).

        counts: how many users hold each record, (n,); one where not given. Raises TypeError, ValueError.
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
    """Parities of at most ``order`` of d bits, on types that code the bits: sqrt(number of concepts) is their norm."""
    d, order = checks.integer("d", d, 1, MOST_BITS), checks.integer("order", order, 0)
    checks.fits("parities", sum(math.comb(d, i) for i in range(min(d, order) + 1)), 2**d, most=MOST_ENTRIES)
    table = parity_workload(d, order).dense()
    return ConceptClass(tuple(f"parity {i}" for i in range(len(table))), (table,))


def conjunctions(d: int, order: int) -> ConceptClass:
    """+1 where all bits of a set of at most ``order`` of d bits are 1, -1 elsewhere, on types that code the bits."""
    d, order = checks.integer("d", d, 1, MOST_BITS), checks.integer("order", order, 0)
    checks.fits("conjunctions", sum(math.comb(d, i) for i in range(min(d, order) + 1)), 2**d, most=MOST_ENTRIES)
    bits = (torch.arange(2**d)[:, None] >> torch.arange(d)) & 1
    sets = bits[bits.sum(1) <= order]
    held = (sets.double() @ bits.double().T) == sets.sum(1, keepdim=True)
    names = ["always"] + [" and ".join(f"bit {j}" for j in range(d) if s[j]) for s in sets.tolist() if sum(s)]
    return ConceptClass(tuple(names), (2 * held.double() - 1,))


def stumps(sizes: Sequence[int], names: Sequence[str] | None = None) -> ConceptClass:
    """Decision stumps: thresholds, both ways, on each of several features; sizes[j]: values of feature j."""
    checks.instance("sizes", sizes, Sequence)
    sizes = [checks.integer("sizes", k, 2) for k in sizes]
    names = [f"feature {j}" for j in range(len(sizes))] if names is None else list(names)
    if len(names) != len(sizes):
        raise ValueError(f"names must hold {len(sizes)} names, one for each feature, not {len(names)}")
    labels = [
        f"{name} {sign} {t}"
        for name, k in zip(names, sizes, strict=True)
        for sign in (">=", "<")
        for t in range(1, k)
    ]
    tables = [_threshold_table(k)[1:] for k in sizes]
    return ConceptClass(tuple(labels), tuple(tables))


def _threshold_table(k: int) -> Tensor:
    """Rows t = 0, ..., k - 1 of "x >= t", then t = 1, ..., k - 1 of "x < t"."""
    checks.fits("thresholds", 2 * k - 1, k, most=MOST_ENTRIES)
    at_least = 2.0 * (torch.arange(k) >= torch.arange(k)[:, None]).double() - 1
    return torch.cat([at_least, -at_least[1:]])
