"""Other shapes of noise: for the differences of a domain's points, of least error in l_p, and round."""

import math
from dataclasses import replace

import torch

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.encoding import differences, encoding
from torchdp.domains.finite import FiniteSet, Vertices
from torchdp.domains.noise_shape import NoiseShape, noise_shape
from torchdp.domains.norm_error import NormError
from torchdp.factorization.certificates.certificate import check_exponent

MOST_CORNERS = 2000  # two million differences
EXPONENTS = (2.0, 3.0, 4.0, 6.0, 8.0, 16.0)


def difference_shape(domain: Domain, p: float, *, tol: float = 1e-4) -> NoiseShape:
    """The shape of noise for K - K: the least noise that protects the replacement of one user's point.

    Replacing x by y moves n times the mean by y - x, so the curator's noise needs an ellipsoid around K - K and none
    around K. Its norm is Gamma_p(K - K) <= 2 Gamma_p(K), with equality for a K that is symmetric about a point (there
    :func:`noise_shape` is the answer); for the corners of a simplex it is 2^{1/2} times less.

    Any domain: of at most 2000 corners by their differences, else by what its parts know of theirs. A list of more
    points that are not symmetric gets the shape of :func:`noise_shape`. The ellipsoid, around points' mean, also holds
    K. Raises ValueError, TypeError.

    Guarantees: its certificate bounds Gamma_p(K - K), or for a symmetric domain and for lists of more points
        Gamma_p(K), at least half of that.
    Source: the proof of Theorem 15 in Nikolov, Tang (2023), which uses no more than the differences.
    """
    points = checks.instance("domain", domain, Domain).corners(MOST_CORNERS)
    if domain.middle is not None or (points is None and isinstance(domain, Vertices)):
        return noise_shape(domain, p, tol=tol)
    if points is None:
        shape = noise_shape(differences(domain), p, shift=False, tol=tol)
    else:
        i, j = torch.triu_indices(len(points), len(points), 1, device=points.device)
        between = points[i] - points[j] if len(i) else torch.zeros_like(points)
        shape = noise_shape(FiniteSet(between), p, shift=False, tol=tol)
    # A^+ (x - mean) is a mean of A^+ (x - y), so the ellipsoid around the points' mean holds K.
    return replace(shape, centre=domain.spanning().mean(0))


def least_error_shape(domain: Domain, p: float, *, local: bool = False) -> NoiseShape:
    """The shape, among those optimal for exponents q from 2 to p, whose noise has the least (E ||Z||_p^2)^{1/2}.

    Gamma_p is the l_p norm of the deviations, a lower bound of that error; for p = inf it does not see that many equal
    deviations have a larger maximum than few. On a box with sides 1, 2, ..., 128 the shape for q = 4 has 26 % less
    error in l_inf than the one for q = inf. The result's own p is q: ask the mechanism for ``error(n, p)``.

    local: for the local model, of :func:`noise_shape`; else for a curator, of
    :func:`difference_shape`. Raises ValueError, TypeError.

    Guarantees: never more error than the shape of Gamma_p, up to the standard error of the comparison.
    Source: the gap between Theorem 15 and Lemma 33 of Nikolov, Tang (2023).
    """
    p = check_exponent(p)

    make = noise_shape if local else difference_shape

    def error(shape: NoiseShape) -> float:
        own = encoding(domain, shape)
        return (own.radius if local else own.diameter) * NormError(shape.root, p).root_mean_square.value

    best = min((make(domain, q) for q in dict.fromkeys((p, *EXPONENTS)) if q <= p), key=error)
    if local or domain.middle is not None:
        return best
    return min(best, noise_shape(domain, best.p), key=error)  # where little is known of the differences


def round_shape(domain: Domain, p: float) -> NoiseShape:
    """The ball around the optimal ellipsoid's centre that holds K: the isotropic noise that others are compared with.

    Its certificate keeps the lower bound of :func:`noise_shape`; its upper is the radius times d^{1/p}.
    Guarantees: the ball holds K.
    Source: Dwork, McSherry, Nissim, Smith (2006), noise calibrated to the l_2 sensitivity.
    """
    best = noise_shape(domain, p)
    identity = torch.eye(domain.dimension).to(best.root)
    radius = math.sqrt(domain.maximise(identity, best.centre).upper)
    upper = radius * domain.dimension ** (1 / p)
    certificate = replace(best.certificate, upper=torch.full_like(best.certificate.upper, upper))
    return replace(best, root=radius * identity, certificate=certificate)
