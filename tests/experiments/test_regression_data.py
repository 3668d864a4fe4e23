"""Rows of the experiments on regression: synthetic ones, and the tables of the paper."""

import math

import torch
from laws import generator
from scripts import loaded

from torchdp.regression import SecondMoments, loss
from torchdp.regression.errors import least_squares

with loaded("regression/synthetic.py") as module:
    spectrum_rows, regression_rows = module.spectrum_rows, module.regression_rows
with loaded("regression/uci.py") as module:
    scaled_columns = module.scaled_columns
    TABLES = [getattr(module, name) for name in ("POWER", "ELEVATION", "ETHYLENE", "SONGS")]


def test_spectrum_rows_have_the_singular_values_of_the_paper():
    A = spectrum_rows(400, 6, 2, generator=generator())
    wanted = torch.tensor([math.sqrt(200)] * 2 + [1 / 400] * 4, dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.svdvals(A), wanted, rtol=1e-6, atol=0)


def test_regression_rows_are_within_their_bounds_and_leave_a_loss():
    A, b = regression_rows(5000, 3, 2.0, generator=generator())
    assert A.shape == (5000, 3) and b.shape == (5000,)
    assert float(A.abs().max()) <= 1 and float(b.abs().max()) <= 1
    moments = SecondMoments.of(A, b)
    assert float(loss(moments, least_squares(moments, 0.0), 0.0)) > 1


def test_scaling():
    A = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(scaled_columns(A)[1], torch.tensor([0.1, 0.1]))
    assert torch.equal(scaled_columns(torch.zeros(2, 2)), torch.zeros(2, 2))


def test_schemas_are_those_of_the_papers_table_6():
    sizes = {s.name.split()[0]: (s.rows, len(s.features), s.rank) for s in TABLES}
    assert sizes == {
        "Power": (2_049_280, 6, 3),
        "Elevation": (434_874, 2, 1),
        "Ethylene": (4_178_504, 18, 5),
        "Songs": (515_345, 90, 15),  # the paper says 89
    }
    for schema in TABLES:
        assert schema.label not in schema.features and max(*schema.features, schema.label) < schema.fields
