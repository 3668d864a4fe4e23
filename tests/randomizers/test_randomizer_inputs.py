"""Bad input of every public function of the randomizers: refused by the name of the argument, never computed on."""

import math

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnitG, RandomizedResponse

VECTOR, RESPONSE = PrivUnitG(3, 1.0, 2.0), RandomizedResponse(4, 1.0)
POINTS, VALUES = torch.zeros(2, 3), torch.tensor([0, 3])


def generator():
    return torch.Generator().manual_seed(0)


NUMBERS = [0, -1.0, math.nan, math.inf, -math.inf, "1", True, None, [1.0], torch.ones(2)]
INTEGERS = [0, -1, 1.0, 2.5, "3", True, None, math.nan]


@pytest.mark.parametrize("bad", [*NUMBERS, 1e-7, 51.0])
def test_privunitg_epsilon(bad):
    with pytest.raises(ValueError, match="epsilon"):
        PrivUnitG(3, bad)


@pytest.mark.parametrize("bad", [*NUMBERS, 701.0])
def test_randomized_response_epsilon(bad):
    with pytest.raises(ValueError, match="epsilon"):
        RandomizedResponse(3, bad)


@pytest.mark.parametrize("bad", NUMBERS)
def test_privunitg_radius(bad):
    with pytest.raises(ValueError, match="radius"):
        PrivUnitG(3, 1.0, bad)


@pytest.mark.parametrize("bad", INTEGERS)
def test_privunitg_dim(bad):
    with pytest.raises(ValueError, match="dim"):
        PrivUnitG(bad, 1.0)


@pytest.mark.parametrize("bad", [*INTEGERS, 1])
def test_randomized_response_k(bad):
    with pytest.raises(ValueError, match="k must"):
        RandomizedResponse(bad, 1.0)


def test_parameters_at_their_limits_are_taken():
    assert PrivUnitG(1, 1e-6).tau.threshold > 0 and PrivUnitG(1, 50.0).tau.threshold < 10
    assert RandomizedResponse(2, 700.0).moments.q > 0


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(4),
        torch.zeros(3, 4),
        torch.tensor(1.0),
        torch.zeros(0),
        torch.full((3,), math.nan),
        torch.tensor([0, math.inf, 0]),
        torch.full((3,), 1.2),  # norm 2.08 against radius 2
        torch.tensor([0.0, 2.0002, 0.0]),
        torch.tensor([0, 3, 0]),
        torch.full((3,), 1e200, dtype=torch.float64),
    ],
)
def test_points_that_are_no_points_of_the_ball(bad):
    with pytest.raises(ValueError, match=r"^x "):
        VECTOR.sample(bad, noise=SeededNoise(0))
    with pytest.raises(ValueError, match=r"^points "):
        VECTOR.sample_sum(bad, torch.tensor([1]), generator=generator())


@pytest.mark.parametrize(
    "bad",
    [None, "x", [0.0] * 3, torch.zeros(3).to_sparse(), torch.zeros(3, dtype=torch.complex64)]
    + [torch.zeros(3, dtype=dtype) for dtype in (torch.float16, torch.bfloat16)]
    + [torch.zeros(3, device="meta")],
)
def test_points_of_a_wrong_kind(bad):
    with pytest.raises(TypeError, match=r"^x "):
        VECTOR.sample(bad, noise=SeededNoise(0))
    with pytest.raises(TypeError, match=r"^points "):
        VECTOR.sample_sum(bad, torch.tensor([1]), generator=generator())


@pytest.mark.parametrize("bad", [torch.tensor([4]), torch.tensor([-1, 0]), torch.tensor(2**40)])
def test_values_outside_the_alphabet(bad):
    for name, call in [
        ("x", lambda: RESPONSE.sample(bad, noise=SeededNoise(0))),
        ("messages", lambda: RESPONSE.decode_sum(bad)),
        ("points", lambda: RESPONSE.sample_sum(bad, torch.tensor([1]), generator=generator())),
    ]:
        with pytest.raises(ValueError, match=rf"^{name} "):
            call()


@pytest.mark.parametrize(
    "bad", [torch.zeros(2), torch.zeros(2).bool(), torch.zeros(2, dtype=torch.complex64), 1, [0]]
)
def test_values_of_a_wrong_kind(bad):
    for name, call in [
        ("x", lambda: RESPONSE.sample(bad, noise=SeededNoise(0))),
        ("messages", lambda: RESPONSE.decode_sum(bad)),
        ("points", lambda: RESPONSE.sample_sum(bad, torch.tensor([1]), generator=generator())),
    ]:
        with pytest.raises(TypeError, match=rf"^{name} "):
            call()


BAD_COUNTS = [
    (torch.tensor([1]), ValueError),
    (torch.tensor([[1, 2]]), ValueError),
    (torch.tensor(1), ValueError),
    (torch.tensor([1, -1]), ValueError),
    (torch.tensor([1.0, -1.0]), ValueError),
    (torch.tensor([1, 0.5]), ValueError),
    (torch.tensor([1, math.nan]), ValueError),
    (torch.tensor([1, math.inf]), ValueError),
    (torch.tensor([1, 1e30]), ValueError),  # would wrap around in int64
    (torch.tensor([2**62, 2**62]), ValueError),  # the sum would
    (torch.tensor([1, 10**14]), ValueError),
    (torch.tensor([True, False]), TypeError),
    (torch.tensor([1, 2], dtype=torch.complex64), TypeError),
    ([1, 2], TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize(("bad", "error"), BAD_COUNTS)
def test_counts(bad, error):
    for call in [
        lambda: VECTOR.sample_sum(POINTS, bad, generator=generator()),
        lambda: RESPONSE.sample_sum(VALUES, bad, generator=generator()),
        lambda: RandomizedResponse(2, 1.0).sample_reports(bad, generator=generator()),
    ]:
        with pytest.raises(error, match=r"^counts "):
            call()


@pytest.mark.parametrize("bad", [0, "cpu", torch, torch.Generator, SeededNoise(1), torch.Generator()])
def test_users_take_noise_and_simulations_a_generator(bad):
    one = torch.tensor([1, 1])
    for name, call in [
        ("noise", lambda: VECTOR.sample(POINTS, noise=bad)),
        ("noise", lambda: VECTOR.collect(POINTS, one, noise=bad)),
        ("noise", lambda: RESPONSE.sample(VALUES, noise=bad)),
        ("noise", lambda: RESPONSE.collect(VALUES, noise=bad)),
        ("generator", lambda: VECTOR.sample_sum(POINTS, one, generator=bad)),
        ("generator", lambda: RESPONSE.sample_sum(VALUES, one, generator=bad)),
        ("generator", lambda: RandomizedResponse(2, 1.0).sample_reports(one, generator=bad)),
    ]:
        if isinstance(bad, SeededNoise if name == "noise" else torch.Generator):
            call()
            continue
        with pytest.raises(TypeError, match=rf"^{name} "):
            call()


@pytest.mark.parametrize("bad", [(-1,), (2, 1.5), ("3",), (None,), (True,)])
def test_sample_shape(bad):
    one = torch.tensor([1, 1])
    for call in [
        lambda: VECTOR.sample_sum(POINTS, one, generator=generator(), sample_shape=bad),
        lambda: RESPONSE.sample_sum(VALUES, one, generator=generator(), sample_shape=bad),
        lambda: RandomizedResponse(2, 1.0).sample_reports(one, generator=generator(), sample_shape=bad),
    ]:
        with pytest.raises(ValueError, match=r"^sample_shape "):
            call()


@pytest.mark.parametrize("shape", [(2, 2, 3), (3,)])
def test_types_of_a_wrong_shape(shape):
    with pytest.raises(ValueError, match=r"^points "):
        VECTOR.sample_sum(torch.zeros(shape), torch.tensor([1, 1]), generator=generator())
    with pytest.raises(ValueError, match=r"^points "):
        RESPONSE.sample_sum(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([1, 1]), generator=generator())


def test_messages_that_cannot_be_decoded():
    for bad in (torch.zeros(3), torch.zeros(2, 4), torch.full((2, 3), math.nan)):
        with pytest.raises(ValueError, match=r"^messages "):
            VECTOR.decode_sum(bad)
    with pytest.raises(TypeError, match=r"^messages "):
        VECTOR.decode_sum([[0.0] * 3])
    for bad in (torch.zeros(3), torch.tensor(1.0), torch.full((4,), math.inf)):
        with pytest.raises(ValueError, match=r"^reports "):
            RESPONSE.decode_counts(bad)
    with pytest.raises(TypeError, match=r"^reports "):
        RESPONSE.decode_counts([1, 2, 3, 4])


@pytest.mark.parametrize("bad", [-1, 4, 1.0, None])
def test_covariance_of_no_value(bad):
    with pytest.raises(ValueError, match=r"^x "):
        RESPONSE.moments.covariance(bad)


def test_messages_of_the_errors_hold_no_data():
    secret = 1.23456789
    with pytest.raises(ValueError) as error:
        VECTOR.sample(torch.full((3,), secret * 2), noise=SeededNoise(0))
    assert "1.2345" not in str(error.value) and "2.469" not in str(error.value)


@pytest.mark.gpu
def test_a_generator_of_another_device():
    with pytest.raises(ValueError, match=r"^generator "):
        VECTOR.sample(POINTS.cuda(), noise=SeededNoise(0))
