"""dp-accounting: noise and epsilon by privacy loss distributions."""

import numpy as np
import side
from dp_accounting import dp_event as event
from dp_accounting import get_sigma_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import poisson


def sampled(multiplier, chance, times, delta):
    one = event.PoissonSampledDpEvent(chance, event.GaussianDpEvent(multiplier))
    return lambda: PLDAccountant().compose(event.SelfComposedDpEvent(one, times)).get_epsilon(delta)


def bits(users, epsilon, delta, instances):
    """Poisson noise, since nothing else here has the law of shuffled bits: each count against the
    one moved by one.
    """

    def spent(mean):
        k = np.arange(max(1, int(mean - 12 * mean**0.5)), int(mean + 12 * mean**0.5))
        law = poisson.logpmf(k, mean)
        one, other = (dict(zip((k + move).tolist(), law.tolist(), strict=True)) for move in (0, 1))
        made = pld.from_two_probability_mass_functions(
            one, other, pessimistic_estimate=True, symmetric=False
        )
        return made.self_compose(instances).get_delta_for_epsilon(epsilon)

    def work():
        low, high = 2.0, 4.0
        while spent(high) > delta:
            low, high = high, 4 * high
        while high > low * (1 + 1e-3):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if spent(middle) <= delta else (middle, high)
        return high**0.5

    return work


if __name__ == "__main__":
    side.main(
        "dp-accounting",
        {
            "Gaussian calibration": lambda epsilon, delta: (
                lambda: get_sigma_gaussian(epsilon, delta)
            ),
            "sampled sums": sampled,
            "768 shuffled bits": bits,
        },
    )
