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
    """Poisson noise, the only one here with shuffled bits' distribution; a count moves by one."""

    def spent(mean):
        reach = 12 * mean**0.5
        k = np.arange(max(1, int(mean - reach)), int(mean + reach))
        logs = poisson.logpmf(k, mean).tolist()
        losses = pld.from_two_probability_mass_functions(
            dict(zip(k.tolist(), logs, strict=True)),
            dict(zip((k + 1).tolist(), logs, strict=True)),
            pessimistic_estimate=True,
            symmetric=False,
        )
        return losses.self_compose(instances).get_delta_for_epsilon(epsilon)

    def work():
        low = 2.0
        high = 4.0
        while spent(high) > delta:
            low = high
            high *= 4
        while high > low * (1 + 1e-3):
            middle = (low * high) ** 0.5
            if spent(middle) <= delta:
                high = middle
            else:
                low = middle
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
