"""Constants as Nikolov, Tang (2023) state them, for comparison."""

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent


def moment_norm(dimension: int, order: int, p: float = 2.0) -> tuple[float, float]:
    """(floor(d/l)^{l/p}, d^{l/p}), the first false for p > 2: its proof gives floor(d/l)^{l/p + l/2} d^{-l/2}.

    Source: Nikolov, Tang (2023), Theorem 64; docs/corrections.md has the counterexample.
    """
    d, order, p = checks.integer("dimension", dimension, 1), checks.integer("order", order, 1), check_exponent(p)
    return float((d // order) ** (order / p)), float(d ** (order / p))
