"""What the laws refuse, and that they say why."""

import pytest

from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    ExactSum,
    NegativeBinomialSum,
    PoissonSum,
    PureSum,
    RandomizedResponseSum,
    delta_of,
    epsilon_of,
)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RandomizedResponseSum(0, 0.2), "users must be an integer >= 1"),
        (lambda: ExactSum(2.5), "users must be an integer >= 1"),
        (lambda: RandomizedResponseSum(3, 0.5), "flip must be below 1/2"),
        (lambda: RandomizedResponseSum(3, 0.7), "flip must be below 1/2"),
        (lambda: RandomizedResponseSum(3, 0.0), "flip must lie strictly between 0 and 1"),
        (lambda: RandomizedResponseSum(3, float("nan")), "flip must lie"),
        (lambda: PoissonSum(3, 0.0), "mean must be a finite number > 0"),
        (lambda: PoissonSum(3, float("inf")), "mean must be a finite number > 0"),
        (lambda: NegativeBinomialSum(3, -1.0, 0.5), "shape must be"),
        (lambda: NegativeBinomialSum(3, 1.0, 1.0), "ratio must lie strictly between 0 and 1"),
        (lambda: CorrelatedSum(3, 1.0, 1.0, 0.5), "ratio must lie strictly between 0 and 1"),
        (lambda: CorrelatedSum(3, 0.5, 0.0, 0.5), "flood_shape must be"),
        (lambda: CorrelatedSum(3, 0.5, 1.0, 1.5), "flood_ratio must lie"),
        (lambda: PureSum(3, 0.0, 0.5, 0.1), "epsilon must be"),
        (lambda: PureSum(3, 1.0, 1.0, 0.1), "share must lie"),
        (lambda: PureSum(3, 1.0, 0.5, 0.0), "drop must lie"),
        (lambda: PureSum(3, 701.0, 0.5, 0.1), "epsilon must be at most 700"),
        (lambda: PureSum(3, 1.0, 0.5, 5e-324), "copies of a message"),
        (lambda: PureSum(3, 1e-300, 1e-10, 0.1), "at least 1e-9"),
        (lambda: PureSum(3, 1.0, 1 - 1e-15, 0.1), "at least 1e-9"),
        (lambda: PureSum(3, 1.0, 1e-301, 0.1), "copies of a message"),
        (lambda: PureSum(3, 1e-8, 0.5, 1e-6), "copies of a message"),
        (lambda: PureSum.tuned(3, 1.0, slack=0.0), "slack must be"),
        (lambda: CentralGaussianSum(3, -1.0), "sigma must be"),
    ],
)
def test_parameters_out_of_range_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_wrong_objects_are_named():
    for call in (
        lambda: delta_of(3, 1.0, 1),
        lambda: epsilon_of(PoissonSum, 1e-3, 1),
        lambda: delta_of(None, 1.0, 4, change=2.0),
    ):
        with pytest.raises(TypeError, match="law must be a"):
            call()
    for absent in (-1, 3, 1.5):
        with pytest.raises(ValueError, match="absent"):
            PoissonSum(3, 5.0).profiles(absent)
