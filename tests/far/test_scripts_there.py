"""Scripts' smoke runs on the device that is not there: none mixes devices."""

import json

import pytest
from far import smokes


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted({name.split("/")[0] for name in smokes.every()}))
def test_every_script_runs_there(child, room):
    found = [json.loads(line) for line in child(smokes.__file__, room).splitlines()]
    assert found
    assert not [row for row in found if row["wrong"]]
