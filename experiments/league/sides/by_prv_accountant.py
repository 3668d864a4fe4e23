"""prv-accountant: epsilon of sampled Gaussian sums, the upper end of its interval."""

import side
from prv_accountant.dpsgd import DPSGDAccountant


def sampled(multiplier, chance, times, delta):
    def work():
        accountant = DPSGDAccountant(
            noise_multiplier=multiplier,
            sampling_probability=chance,
            eps_error=0.01,
            delta_error=1e-8,
            max_steps=times,
        )
        return accountant.compute_epsilon(delta=delta, num_steps=times)[2]

    return work


if __name__ == "__main__":
    side.main("prv-accountant", {"sampled sums": sampled})
