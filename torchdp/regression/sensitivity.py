"""How far one client's products can move A^T A and A^T b: exact sensitivities for replacing one row and label.

Let |x|, |x'| <= B and |y|, |y'| <= C be one client's values in neighbouring data, a and a' the norms of x and x', c
the cosine between them. Then |x x^T - x' x'^T|_F^2 + |y x - y' x'|^2 =
    a^4 + a'^4 - 2 a^2 a'^2 c^2 + y^2 a^2 + y'^2 a'^2 - 2 y y' a a' c,
convex in y and in y', so largest at |y| = |y'| = C with the signs that turn the last term into + 2 C^2 a a' |c|. As a
concave parabola in |c| it is at most a^4 + a'^4 + C^2 (a^2 + a'^2) + C^4/2 <= (2 B^2 + C^2)^2/2, attained at a = a' =
B and |c| = C^2/(2 B^2) if that is no cosine above 1. If it is, C^2 > 2 B^2 >= 2 a a', |c| = 1 is best for all a, a':
with s = a + a' and t = abs(a - a') the value is s^2 (t^2 + C^2) <= (2 B - t)^2 (t^2 + C^2), whose logarithm has the
sign of t (2 B - t) - t^2 - C^2 <= B^2/2 - C^2 < 0 as its slope: t = 0, 4 B^2 C^2. With one column |c| = 1 throughout,
and t is 0 or, where 2 C^2 <= B^2, also the larger root of 2 t^2 - 2 B t + C^2 = 0.
"""

import math

from torchdp import checks


def gram_sensitivity(bound: float, columns: int) -> float:
    """Largest |x x^T - x' x'^T|_F over |x|, |x'| <= B: sqrt 2 B^2, and B^2 with one column. Raises ValueError."""
    bound, columns = checks.squarable("bound", bound), checks.integer("columns", columns, 1)
    return bound**2 * (math.sqrt(2) if columns > 1 else 1.0)


def cross_sensitivity(bound: float, label_bound: float) -> float:
    """Largest |y x - y' x'| over |x|, |x'| <= B and |y|, |y'| <= C: 2 B C. Raises ValueError."""
    return 2 * checks.squarable("bound", bound) * checks.squarable("label_bound", label_bound)


def joint_sensitivity(bound: float, label_bound: float, columns: int) -> float:
    """Largest distance of (x x^T, y x) from (x' x'^T, y' x'), |x|, |x'| <= B and abs(y), abs(y') <= C.

    (2 B^2 + C^2)/sqrt 2 where C^2 <= 2 B^2, else 2 B C; with one column the larger of 2 B C and, where 2 C^2 <= B^2,
    (2 B - t) sqrt(t^2 + C^2), t = (B + sqrt(B^2 - 2 C^2))/2. Attained; derived at the top of this module.
    Raises ValueError.
    """
    B, C = checks.squarable("bound", bound), checks.squarable("label_bound", label_bound)
    if checks.integer("columns", columns, 1) > 1:
        return (2 * B**2 + C**2) / math.sqrt(2) if C**2 <= 2 * B**2 else 2 * B * C
    if 2 * C**2 > B**2:
        return 2 * B * C
    t = (B + math.sqrt(B**2 - 2 * C**2)) / 2
    return max(2 * B * C, (2 * B - t) * math.hypot(t, C))
