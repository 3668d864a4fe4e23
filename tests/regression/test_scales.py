"""Bounds, epsilons and deltas out of all proportion: refused by their names, or the release has
noise of its size.
"""

import warnings

import pytest
import torch

from torchdp import checks, regression, shuffle, sketching
from torchdp.secure import PureSecureSketch, SecureSketch

N = 8
# of bound, epsilon, delta; and whether a row ends in a label
KINDS = {
    "SecureSketch": (
        lambda *given: SecureSketch(sketching.ones(N), 2, *given),
        False,
    ),
    "32 bits": (
        lambda *given: SecureSketch(sketching.ones(N), 2, *given, bits=32),
        False,
    ),
    "PureSecureSketch": (
        lambda b, e, _: PureSecureSketch(sketching.ones(N), 2, b, e),
        False,
    ),
    "GramRelease": (
        lambda *given: regression.GramRelease(N, 2, *given, 1.0),
        True,
    ),
    "FrequencyMoments": (
        lambda b, e, d: regression.FrequencyMoments(N, b, (1.0, 2.0), e, d),
        None,
    ),
    "Laplace": (
        lambda b, e, _: regression.FrequencyMoments(N, b, (1.0, 2.0), e),
        None,
    ),
    "LocalRows": (
        lambda *given: regression.LocalRows(2, *given),
        False,
    ),
}
FAR = [
    10.0**power
    for power in (
        -300,
        -150,
        -100,
        -60,
        -20,
        -17,
        -10,
        10,
        20,
        60,
        100,
        150,
    )
]
CASES = [
    *((b, 1.0, 1e-6) for b in FAR),
    *((1.0, e, 1e-6) for e in (1e-300, 1e-15, 1e3, 1e10, 1e300)),
    (1, 1, 1e-300),
]


@pytest.mark.parametrize("name", KINDS)
def test_a_scale_that_swallows_the_data_is_refused_by_name(name):
    make, labelled = KINDS[name]
    found = []
    for given in CASES:
        x = torch.full((N, 2), given[0] / 4, dtype=torch.float64)
        if labelled is None:
            x = x[:, 0]
        elif labelled:
            x = torch.cat([x, torch.full_like(x[:, :1], 0.5)], 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                release = make(*given).estimate(x)
            except ValueError as error:
                found.append(str(error))
                assert "bound" in found[-1] or "epsilon" in found[-1] or "delta" in found[-1]
                continue
        errors = release.standard_error
        assert release.value.isfinite().all()
        assert errors.isfinite().all()
        assert (errors > 0).all()
        assert "Secure" not in name or given[1] != 1 or float(errors.max()) < 100 * given[0]
    assert 4 <= len(found) < len(CASES) - 2


LAWS = (
    "PoissonSum",
    "BoundedSum",
    "RandomizedResponseSum",
    "CorrelatedSum",
)


@pytest.mark.parametrize("law", [getattr(shuffle, name) for name in LAWS], ids=LAWS)
def test_a_delta_that_no_law_follows_is_named(law):
    for delta in (1e-300, 1e-40):
        with pytest.raises(
            ValueError,
            match=r"delta must be at least 1e-25 for flips = 1",
        ):
            law.calibrated(100, 1.0, delta, 1)
    assert law.calibrated(100, 1.0, 1e-24, 1).flipped_delta(1.0, 1) <= 1e-24


def test_powers_have_their_own_limits():
    assert checks.squarable("x", 1e74, 4) == 1e74
