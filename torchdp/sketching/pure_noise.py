"""Laplace noise in parts: pure epsilon. In integers: ``secure.PureSecureSketch``."""

from dataclasses import dataclass

from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.sketching.coalition import EVERYBODY, AdaptiveCoalition, honest_pairs
from torchdp.sketching.noise import DivisibleNoise
from torchdp.sketching.sketch import Sketch


@dataclass(frozen=True, eq=False)
class LaplaceNoise(DivisibleNoise):
    """Gamma(1/parts_j, scale) - Gamma(1/parts_j, scale) in each entry: parts_j of them make a Laplace(scale).

    scale: b. parts: (m,), the honest (client, copy) pairs that a row holds at least. Raises ValueError, TypeError.

    Guarantees: pure epsilon, exactly 2 s B_1/scale, for clients' rows of l_1 norm at most B_1, where parts_j <= h_j.
    Source: replacing row a_i changes s rows of sqrt(s) S A, each by at most 2 B_1 in l_1, under independent noise that
        is Laplace plus more of the same kind, whose density ratio tends to exp(2 B_1/b) far out; Dwork, McSherry,
        Nissim, Smith (2006), Theorem 1; infinitely divisible: Kotz, Kozubowski, Podgorski (2001), Section 2.4.
    """

    scale: float
    parts: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.positive("scale", self.scale)
        object.__setattr__(self, "parts", _parts(self.parts))

    @staticmethod
    def calibrated(
        sketch: Sketch, bound: float, *, epsilon: float, coalition: AdaptiveCoalition = EVERYBODY
    ) -> "LaplaceNoise":
        """Scale 2 s B_1/epsilon in each row; an entry of the release has variance 8 s B_1^2/epsilon^2.

        bound: B_1, the largest l_1 norm of a client's row. One copy is best. Raises ValueError, TypeError.

        Guarantees: pure epsilon, exactly.
        """
        honest = honest_pairs(sketch, coalition)
        scale = 2 * sketch.copies * checks.squarable("bound", bound) / checks.squarable("epsilon", epsilon)
        return LaplaceNoise(scale, honest.clamp_min(1))

    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        shares = sketch.counts() / _row_parts(self.parts, sketch)
        first, second = draws.gamma(shares[:, None].expand(2, *shape))
        return self.scale * (first - second)

    def variance(self, sketch: Sketch) -> Tensor:
        checks.instance("sketch", sketch, Sketch)
        return 2 * self.scale**2 * sketch.counts() / _row_parts(self.parts, sketch) / sketch.copies

    def guarantee(self, sketch: Sketch, bound: float, *, coalition: AdaptiveCoalition = EVERYBODY) -> Guarantee:
        """What S A plus this noise promises to each honest client. Raises TypeError, ValueError."""
        honest = honest_pairs(sketch, coalition)
        epsilon = 2 * sketch.copies * checks.squarable("bound", bound) / self.scale
        too_few = _row_parts(self.parts, sketch) > honest
        if bool(too_few[sketch.counts() > 0].any()):
            raise ValueError(
                "some row may hold fewer honest clients than parts: its noise would be no whole Laplace"
            )
        kind = Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE
        source = "Dwork, McSherry, Nissim, Smith (2006), Theorem 1"
        return Guarantee(epsilon, 0.0, *kind, coalition.exact(sketch), source)


def _parts(parts: Tensor) -> Tensor:
    parts = checks.floating("parts", parts).double()
    if parts.ndim != 1 or not (parts >= 1).all():
        raise ValueError(f"parts must hold one number >= 1 for each row, not of shape {tuple(parts.shape)}")
    return parts


def _row_parts(parts: Tensor, sketch: Sketch) -> Tensor:
    if len(parts) != sketch.height:
        raise ValueError(f"parts has {len(parts)} rows, the sketch {sketch.height}")
    return parts.to(sketch.device)
