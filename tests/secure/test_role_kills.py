"""kill -9 of every role before every line that it runs: it goes on, and one sum leaves each
server.
"""

import inspect
import os
import shutil
import signal
import sys

import pytest
import torch
from parties import Parties, rows

from torchdp import secure
from torchdp.secure import KeyFile, SecureSketch
from torchdp.sketching import AdaptiveCoalition, ones

FILES = {inspect.getsourcefile(part) for part in (secure.submit, secure.KeyFile)}


def killed(line, play):
    """Whether a child that plays was killed before this line, counted as they first run, of the
    roles' own code.
    """
    if (child := os.fork()) == 0:
        ran = set()

        def trace(frame, *_):
            if frame.f_code.co_filename not in FILES:
                return None
            ran.add((frame.f_code, frame.f_lineno))
            if len(ran) > line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            play()
        except TimeoutError:
            pass
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def sums(found):
    return {path.name: path.read_bytes() for path in found.at.glob("[!.]*.sum")}


def attacked(folder, role, line):
    """Kills one role there, then lets all go on; returns whether it was killed."""
    sizes = {"north": 2, "south": 1}
    servers = ("server-0", "server-1")
    x = rows(3, 2)
    found = Parties(
        SecureSketch(ones(3), 2, 1.0, 1.0, 1e-5, coalition=AdaptiveCoalition(0)),
        x,
        folder,
        sizes,
        servers,
    )
    if role == "submit":
        play = lambda: found.submit("north", noise=False)  # noqa: E731
    else:
        found.submit(noise=False)
        # the other server has made its roll call
        if role == "agree":
            with pytest.raises(TimeoutError):
                secure.serve(found.at, found.key("server-1"))
        play = lambda: secure.serve(found.at, found.key("server-0"))  # noqa: E731
    done = killed(line, play)
    left = sums(found)
    # what left before leaves again: noise is drawn once, or the sums would not fit
    found.submit(noise=False)
    found.serve()
    after = sums(found)
    assert after.items() >= left.items()
    assert len(after) == 2
    released = found.release().value
    assert float((released - x.sum(0)).abs().max()) < 12 * float(
        found.session.sums.row_variance.sqrt()[0]
    )
    sent = {path.name: path.read_bytes() for path in found.at.glob("*.frames")}
    found.submit(noise=False), found.serve()
    assert sums(found) == after
    assert torch.equal(found.release().value, released)
    assert sent == {path.name: path.read_bytes() for path in found.at.glob("*.frames")}
    shutil.rmtree(folder)
    return done


@pytest.mark.parametrize("role", ["submit", "serve", "agree"])
@pytest.mark.parametrize("step", [90, pytest.param(1, marks=pytest.mark.slow)])
def test_a_role_that_is_killed_goes_on_and_releases_once(tmp_path, role, step):
    line = 0
    while attacked(tmp_path / f"{line}", role, line):
        line += step
    # and at the end it was not killed
    assert line >= 90


def test_the_control_sees_noise_that_is_drawn_again(tmp_path, monkeypatch):
    """Frames of two draws, one at each server: their sum is no sum of anything."""
    monkeypatch.setattr(KeyFile, "once", lambda self, what, make: make())
    sizes = {"north": 2}
    servers = ("server-0", "server-1")
    found = Parties(
        SecureSketch(ones(2), 2, 1.0, 1.0, 1e-5, coalition=AdaptiveCoalition(0)),
        rows(2, 2),
        tmp_path,
        sizes,
        servers,
    )
    found.submit(noise=False)
    first = (found.at / "north.server-0.frames").read_bytes()
    found.submit(noise=False)
    (found.at / "north.server-0.frames").write_bytes(first)
    with pytest.raises(ValueError, match="tally"):
        found.serve(), found.release()
