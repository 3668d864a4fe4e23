"""Plans that several files' tests run."""

import pytest
import trained


@pytest.fixture
def plans():
    return trained.plans()
