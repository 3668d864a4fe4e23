"""What the tests of the commands share."""

import json

import pytest

from torchdp import cli


@pytest.fixture
def estimate(capsys, brief):
    """What ``torchdp estimate``, or ``plan``, prints of these words; where ``--json`` is one, its
    record.
    """

    def ask(*words, code=0, command="estimate"):
        arguments = [
            part
            for word in words
            for part in (word.split() if isinstance(word, str) else [str(word)])
        ]
        found = cli.main([command, *arguments])
        said = capsys.readouterr()
        ask.said = said
        assert found == code, said.err
        if code:
            assert said.out == ""
            assert said.err.startswith(f"torchdp {command}: ")
            assert said.err.endswith("\n")
            assert said.err.count("\n") == 1
            assert "Traceback" not in said.err
            assert "\x1b" not in said.err
            return said.err
        return json.loads(said.out) if "--json" in arguments else said

    return ask
