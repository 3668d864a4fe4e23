"""One thread, unless OMP_NUM_THREADS says another number: the tests' tensors are small, and on busy
cores more threads only wait for each other. And the same draws at every run: a test that passes
passes again."""

import gc
import hashlib
import itertools
import os

import landing
import pytest
import torch

from torchdp import noise, queries, workloads
from torchdp.noise import process
from torchdp.protocol import Choice, Objective
from torchdp.protocol.choice import Candidate
from torchdp.randomizers import RandomizedResponse, StrategyMatrix
from torchdp.randomizers.alphabet import shift_strategy

CHOOSE = queries.choose
SHIFTS = shift_strategy.shifts
# of the processes that tests start too
THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")


SPENT = {}


def pytest_addoption(parser):
    parser.addoption("--since", metavar="COMMIT", help="leave out dear tests that no change moves")
    parser.addoption("--dear", action="store_true", help="note the dearest tenth of the tests")


def pytest_collection_modifyitems(config, items):
    since = config.getoption("--since")
    if since is None:
        return
    try:
        out = landing.left_out([item.nodeid for item in items], since)
    except landing.UnknownCommit as error:
        raise pytest.UsageError(f"--since must be a commit of this checkout: {error}") from None
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]


def pytest_runtest_logreport(report):
    SPENT[report.nodeid] = SPENT.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session):
    if session.config.getoption("--dear") and not hasattr(session.config, "workerinput"):
        landing.note(SPENT)


def pytest_collection_finish():
    """What is imported and collected stays: whoever collects garbage need not look at it each
    time.
    """
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def fixed_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(int(THREADS))
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def repeated_draws(request, monkeypatch):
    """The system's keys and torch's own generator follow from the test's name, other keys at each
    call and process.
    """
    calls = itertools.count()
    parent, forks = process()

    def key(device="cpu"):
        here, now = process()
        place = "" if here == parent else f"{here} {now - forks}"
        name = f"{request.node.nodeid} {next(calls)} {place}"
        material = hashlib.sha256(name.encode()).digest()
        return torch.frombuffer(bytearray(material), dtype=torch.int32).to(device)

    monkeypatch.setattr(noise, "system_key", key)
    digest = hashlib.sha256(request.node.nodeid.encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    # torch.manual_seed notes the stack for each device to come
    torch.default_generator.manual_seed(seed)


@pytest.fixture
def brief(request, monkeypatch):
    """Searches of strategies stop early, where what is asked is not how good they are: not in slow
    tests.
    """
    if request.node.get_closest_marker("slow"):
        return
    usual = StrategyMatrix.tuned

    def tuned(*problem, steps=None, **options):
        return usual(*problem, steps=min(steps or 60, 60), **options)

    def shifts(W, epsilon, steps, starts, *others):
        return SHIFTS(
            W,
            epsilon,
            min(steps, 40),
            min(starts, 2),
            *others,
        )

    monkeypatch.setattr(StrategyMatrix, "tuned", tuned)
    monkeypatch.setattr(shift_strategy, "shifts", shifts)


@pytest.fixture
def quick(monkeypatch):
    """Without searches, which take seconds."""

    def choose(asked, n, epsilon, delta=None, **given):
        linear = isinstance(asked, torch.Tensor | workloads.Workload)
        if not linear or given.get("trust", "local") != "local":
            return CHOOSE(
                asked,
                n,
                epsilon,
                delta,
                **{**given, "search": False},
            )
        protocol = queries.LocalOracle(asked, RandomizedResponse(asked.shape[1], epsilon))
        worst = protocol.worst_mse(n, given.get("objective", Objective.WORST))
        return Choice((Candidate("randomized", protocol, float(worst) ** 0.5),))

    monkeypatch.setattr(queries, "choose", choose)
