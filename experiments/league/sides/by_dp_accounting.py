"""dp-accounting: noise and epsilon by privacy loss distributions."""

import side
from dp_accounting import calibrate_dp_mechanism
from dp_accounting import dp_event as event
from dp_accounting.pld import PLDAccountant


def sampled(multiplier, chance, times, delta):
    one = event.PoissonSampledDpEvent(chance, event.GaussianDpEvent(multiplier))
    return (lambda: PLDAccountant().compose(event.SelfComposedDpEvent(one, times)).get_epsilon(delta),)


if __name__ == "__main__":
    side.main(
        "dp-accounting",
        {
            "Gaussian calibration": lambda epsilon, delta: (
                lambda: calibrate_dp_mechanism(PLDAccountant, event.GaussianDpEvent, epsilon, delta),
            ),
            "sampled sums": sampled,
        },
    )
