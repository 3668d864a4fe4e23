"""What the tests of sweeps share: trials that workers import by name, and the rows of a sweep in
one process.
"""

import sys
from pathlib import Path

import pytest

from torchdp.simulate import sweep

sys.path.insert(0, str(Path(__file__).parent))
import worker_trials as trials


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    store = tmp_path_factory.mktemp("whole") / "store.jsonl"
    return trials.results(sweep(trials.make_trial, trials.GRID, store=store, **trials.SETTINGS))
