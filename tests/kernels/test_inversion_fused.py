"""Integers by inversion in Triton: the reference's, bit for bit."""

import pytest
import torch

from torchdp.kernels import inversion, philox
from torchdp.kernels.inversion import reference
from torchdp.kernels.inversion.tables import Table

triton = pytest.importorskip("triton")

from torchdp.kernels.inversion import fused  # noqa: E402

TABLES = {
    "never": inversion.poisson(1e-60),
    "rare": inversion.poisson(1e-9),
    "few": inversion.negative_binomial(0.25, 0.5),
    "many": inversion.poisson(150.0),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize(
    ("users", "columns", "key", "first"),
    [
        (0, 3, 1, 0),
        (3, 0, 1, 0),
        (1, 1, 0, 0),
        (63, 5, -1, 2**32 - 7),
        (9, 131, 2**63 - 1, 1),
        (1000, 2, 5, 2**60),
    ],
)
def test_both_paths_draw_the_same_integers(device, table, users, columns, key, first):
    where, options = table.to(device), {"first": first, "stream": 3}
    expected = reference.draws(where, key, users, columns, **options)
    if users < 1000:
        assert torch.equal(fused.draws(where, key, users, columns, **options), expected)
    assert torch.equal(fused.column_sums(where, key, users, columns, **options), expected.sum(0))


def test_sums_over_more_users_than_one_program_takes(device, monkeypatch):
    monkeypatch.setattr(fused, "ROUNDS", 2)
    table = TABLES["few"].to(device)
    expected = reference.column_sums(table, 4, 41, 129, first=0, stream=0)
    assert torch.equal(fused.column_sums(table, 4, 41, 129, first=0, stream=0), expected)


@pytest.mark.parametrize("key", [1, 77])
def test_words_that_meet_a_threshold_are_decided_by_their_other_bits(device, key):
    """Thresholds around the word of user 3, column 2, that share its first 32, 64 and 96 bits."""
    a = int(philox.words(key, torch.tensor(3), 0, 0)[2])
    b, c, d, _ = (int(word) for word in philox.words(key, torch.tensor(3), 2, reference.SECOND))
    top = 2**32 - 1
    falling = [
        (a + 1, 0, 0, 0),
        (a, b + 1, 0, 0),
        (a, b, c + 1, 0),
        (a, b, c, d + 1),
        (a, b, c, d),
        (a, b, c - 1, top),
    ]
    words = torch.tensor([*falling, (a - 1, top, 0, 0), (0, 0, 0, 0)]).T.contiguous()
    table = Table(10, words, 7).to(device)
    expected = reference.draws(table, key, 5, 3, first=0, stream=0)
    assert int(expected[3, 2]) == 14
    assert torch.equal(fused.draws(table, key, 5, 3, first=0, stream=0), expected)
    assert torch.equal(fused.column_sums(table, key, 5, 3, first=0, stream=0), expected.sum(0))


def test_nothing_is_written_beside_the_draws(device):
    table = TABLES["few"].to(device)
    out = torch.full((4, 4), -1, dtype=torch.int64, device=device)  # a row more than drawn, and a sum more
    fused.draws_kernel[(1,)](
        *(out, table.words.to(torch.int32), table.first, 5, 0, 0, 3, 4, 1),
        STEPS=table.words.shape[1].bit_length() - 1,
        HEIGHT=8,
        WIDTH=4,
    )
    assert torch.equal(out[:3], reference.draws(table, 5, 3, 4, first=0, stream=0)) and (out[3] == -1).all()
