"""How far one client's products can move A^T A and A^T b: exact sensitivities for replacing one row and label.

Let |x|, |x'| <= B and |y|, |y'| <= B be one client's values in neighbouring data, labels on the rows' scale, a and a'
the norms of x and x', c the cosine between them. Then |x x^T - x' x'^T|_F^2 + |y x - y' x'|^2 =
    a^4 + a'^4 - 2 a^2 a'^2 c^2 + y^2 a^2 + y'^2 a'^2 - 2 y y' a a' c,
convex in y and in y', so largest at |y| = |y'| = B with the signs that turn the last term into + 2 B^2 a a' |c|. As a
concave parabola in |c| it is at most a^4 + a'^4 + B^2 (a^2 + a'^2) + B^4/2 <= 9 B^4/2, attained at a = a' = B and
|c| = 1/2. With one column |c| = 1: with s = a + a' and t = abs(a - a') the value is s^2 (t^2 + B^2) <= (2 B - t)^2
(t^2 + B^2), whose logarithm has the sign of t (2 B - t) - t^2 - B^2 < 0 as its slope: t = 0, 4 B^4.
"""

import math

from torchdp import checks


def gram_sensitivity(bound: float, columns: int) -> float:
    """Largest |x x^T - x' x'^T|_F over |x|, |x'| <= B: sqrt 2 B^2, and B^2 with one column. Raises ValueError."""
    bound, columns = checks.squarable("bound", bound, 4), checks.integer("columns", columns, 1)
    return bound**2 * (math.sqrt(2) if columns > 1 else 1.0)


def joint_sensitivity(bound: float, columns: int) -> float:
    """Largest distance of (x x^T, y x) from (x' x'^T, y' x'), |x|, |x'|, abs(y), abs(y') <= B: 3 B^2/sqrt 2.

    2 B^2 with one column. Attained; derived at the top of this module. Raises ValueError.
    """
    bound, columns = checks.squarable("bound", bound, 4), checks.integer("columns", columns, 1)
    return bound**2 * (3 / math.sqrt(2) if columns > 1 else 2.0)
