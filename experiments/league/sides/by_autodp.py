"""autodp: Gaussian noise calibrated by a numerical search."""

import side
from autodp.calibrator_zoo import eps_delta_calibrator
from autodp.mechanism_zoo import ExactGaussianMechanism


def calibration(epsilon, delta):
    def work():
        found = eps_delta_calibrator()(ExactGaussianMechanism, epsilon, delta, [0, 100], name="gm")
        return found.params["sigma"]

    return work


if __name__ == "__main__":
    side.main("autodp", {"Gaussian calibration": calibration})
