"""Third and fourth moments of a ball message's noise: what the square of the sum of messages adds to its variance."""

from dataclasses import dataclass

from torch import Tensor

from torchdp.randomizers import PrivUnit


@dataclass(frozen=True)
class NoiseMoments:
    """Moments of the noise z = a u + b w of a message at the unit vector u, w uniform on the sphere orthogonal to u.

    With e a unit vector orthogonal to u: third = E <z, u>^3, mixed_third = E <z, u> <z, e>^2, fourth = E <z, u>^4,
    mixed_fourth = E <z, u>^2 <z, e>^2, across_fourth = E <z, e>^4, and variance = E <z, u>^2 = E <z, e>^2. By symmetry
    these are all; moments of odd order in e vanish, and for orthogonal e, e' E <z, e>^2 <z, e'>^2 = across_fourth/3.
    """

    variance: float
    third: float
    mixed_third: float
    fourth: float
    mixed_fourth: float
    across_fourth: float

    def beyond_normal(
        self, u: Tensor, total: Tensor, weights: Tensor, linear: float = 2.0, square: float = 1.0
    ) -> Tensor:
        """Var(a s^T J z + b z^T J z) for each row of u beyond what normal noise of variance v in every direction gives.

        J = diag(weights), s = total, a = linear, b = square: 2 a b E[s^T J z z^T J z] + b^2 (Var(z^T J z)
        - 2 v^2 sum weights^2).
        u: (k, r), the unit vectors less a coordinate that J does not see, so norms below 1 are meant; total, weights:
        (*batch, r). Returns (*batch, k).
        """
        trace = weights.sum(-1, keepdim=True)
        squared = weights.square().sum(-1, keepdim=True)
        own = weights @ u.square().mT  # u^T J u
        along = (weights * total) @ u.mT  # s^T J u
        twice = weights.square() @ u.square().mT  # ||J u||^2
        across = trace - own  # trace of J on the space orthogonal to u
        rest = (weights.square() * total) @ u.mT - along * own  # s^T J P J u, P the projection on that space
        squares = squared - 2 * twice + own**2  # trace of (P J)^2
        cubic = self.third * along * own + self.mixed_third * (along * across + 2 * rest)
        quartic = (
            self.fourth * own**2
            + self.mixed_fourth * (2 * own * across + 4 * (twice - own**2))
            + self.across_fourth / 3 * (2 * squares + across**2)
        )
        v = self.variance
        return 2 * linear * square * cubic + square**2 * (quartic - v**2 * (trace**2 + 2 * squared))


def noise_moments(randomizer: PrivUnit) -> NoiseMoments:
    """The moments of a randomizer's noise at the lifted unit vector.

    The lifted message has norm radius/gamma, so b^2 = (radius/gamma)^2 - (radius + a)^2, D = dim + 1.
    """
    moments, C = randomizer.moments, randomizer.radius
    v = moments.variance
    third, fourth = moments.third * v**1.5, moments.fourth * v**2
    D, norm = randomizer.dim + 1, (C / randomizer.cap.threshold) ** 2
    fourth_about_zero = C**4 + 6 * C**2 * v + 4 * C * third + fourth  # E (C + a)^4
    across_fourth = 3 * (norm**2 - 2 * norm * (C**2 + v) + fourth_about_zero) / ((D - 1) * (D + 1))  # from E b^4
    mixed_third = (-2 * C * v - third) / (D - 1)
    mixed_fourth = ((norm - C**2) * v - 2 * C * third - fourth) / (D - 1)
    return NoiseMoments(v, third, mixed_third, fourth, mixed_fourth, across_fourth)
