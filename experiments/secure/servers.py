"""Organisations, servers and analyst as processes, each with its own key file: bit for bit what one
process gives.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), "Distributed Differentially Private Data
Analytics via Secure
    Sketching", section 6.1: the servers' transform on additive shares; Tables 3 to 5, bytes and
    seconds; Table 8, regression.
Command:  python experiments/secure/servers.py; --clients 1000000 for the paper's largest number.
Expected: "identical" is True; words take 8 S (s n d + m d) bytes, the analyst gets m d words from
each server; ridge
    regression from what is released has at most 1.01 times the least loss, as a curator's has. Of
    the second moments every organisation is hidden from every other: the largest one's clients
    count as corrupt. A row of the sketch holds too few clients for that, and the session says so.
Output: results/secure/servers/*.csv.
Artifact: Burkhardt et al. (2025) | section 6.1
Status: agrees, on one machine
Time: a minute on two cores, --smoke in 15 CPU-seconds; a million clients three minutes, 2 GB on the
disk. On the CPU,
    whatever --device says.
"""

import json
import multiprocessing
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from torchdp import regression, secure
from torchdp.noise import SeededNoise
from torchdp.privacy import Model
from torchdp.randomness import keyed_generator
from torchdp.secure import KeyFile, SecureSketch, Session, SharedSum
from torchdp.secure.frames import HEADER_BYTES, TAG_BYTES
from torchdp.simulate import Experiment
from torchdp.sketching import AdaptiveCoalition, balanced_osnap
from torchdp.threads import on_host


@dataclass(frozen=True)
class Config:
    clients: int = 200_000
    servers: int = 3
    organisations: int = 4


COLUMNS = 10
HEIGHT = 100  # rows of the sketch
COPIES = 2  # entries of a column of it that are not 0
EPSILON = 0.5
DELTA = 1e-6
RIDGE = 10.0
WAIT = 600.0  # seconds, for other processes
Question = SecureSketch | SharedSum


def sketch(config):
    """A sketch of rows of norm 1, without the noise of one client in 200: no row holds more than an
    organisation.
    """
    n = config.clients
    osnap = balanced_osnap(n, HEIGHT, COPIES, generator=keyed_generator(b"sketch"))
    x = torch.randn(n, COLUMNS, dtype=torch.float64, generator=keyed_generator(b"data"))
    coalition = AdaptiveCoalition(n // 200)
    question = SecureSketch(osnap, COLUMNS, 1.0, EPSILON, DELTA, coalition=coalition)
    return question, x / x.norm(dim=1, keepdim=True)


def gram(config):
    """Second moments of rows in [-1, 1]^10 and a label."""
    n = config.clients
    generator = keyed_generator(b"gram")
    rows = torch.rand(n, COLUMNS, dtype=torch.float64, generator=generator) * 2 - 1
    noise = 0.3 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    labels = (rows.sum(1, keepdim=True) / 5 + noise).clamp(-1, 1)
    question = regression.GramRelease(n, COLUMNS, COLUMNS**0.5, EPSILON, DELTA, label_bound=1.0)
    return question, torch.cat([rows, labels], 1)


def sizes(config):
    """Clients of each organisation, no two alike."""
    whole = sum(range(1, config.organisations + 1))
    counts = [config.clients * i // whole for i in range(1, config.organisations)]
    counts.append(config.clients - sum(counts))
    return {f"organisation-{i}": n for i, n in enumerate(counts)}


def server_names(config):
    return [f"server-{k}" for k in range(config.servers)]


def play(name, folders: list[Path]):
    """One party in a process of its own, in one session after another; writes down its CPU seconds
    in each.
    """
    torch.set_num_threads(1)
    for folder in folders:
        key = KeyFile(folder / f"{name}.key")
        session = folder / "session"
        start = time.process_time()
        if name == "analyst":
            found = secure.release(session, key, wait=WAIT)
            torch.save((found.value, found.standard_error, found.n), folder / "release.pt")
        elif name.startswith("server"):
            secure.serve(session, key, wait=WAIT)
        else:
            rows = torch.load(folder / f"{name}.pt")
            _, seed = name.split("-")
            # seeded, so that one process can draw the same noise
            secure.submit(session, key, rows, noise=SeededNoise(int(seed)))
        seconds = time.process_time() - start
        (folder / f"{name}.json").write_text(json.dumps(seconds))


def prepared(folder, question, x, config):
    """A session with everybody's key, and each organisation's rows."""
    folder.mkdir()
    clients = sizes(config)
    servers = server_names(config)
    secure.new_keys(folder, *servers, *clients, "analyst")

    def party(name) -> secure.Party:
        return secure.Party(name, KeyFile(folder / f"{name}.key").public, clients.get(name, 0))

    session = Session(
        question, tuple(map(party, servers)), tuple(map(party, clients)), party("analyst")
    )
    secure.open_session(folder / "session", session)
    for party in session.parties:
        KeyFile(folder / f"{party.name}.key").join(session, session.fingerprint)
    for name, part in zip(clients, x.split(list(clients.values())), strict=True):
        torch.save(part.clone(), folder / f"{name}.pt")
    return session


def played(config, folders: list[Path]):
    """All parties, each in its process."""
    context = multiprocessing.get_context("forkserver")  # imports once
    names = [*server_names(config), *sizes(config), "analyst"]
    running = [context.Process(target=play, args=(name, folders)) for name in names]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a party ended with code {process.exitcode}")


def alone(session, x):
    """The release by one process, from the same sources."""
    question = session.question
    tallies = []
    for i, party in enumerate(session.organisations):
        first = session.first(party)
        noise = SeededNoise(i)
        # in the parts in which an organisation draws, so that the noise is the same
        for rows in x[first : first + party.clients].split(session.sums.at_once):
            messages = question.randomize(rows, first=first, noise=noise)
            tallies.append(question.tally(messages))
            first += len(rows)
    return question.analyse(question.add(*tallies))


def compare(kind, folder, session, x, report):
    """Report whether one process gives the same bits, and what every role sent and took; returns
    the release.
    """
    value, error, n = torch.load(folder / "release.pt")
    # files between two roles are named after both
    files = {
        tuple(path.name.split(".")): path.stat().st_size
        for path in (folder / "session").glob("*.*.*")
    }
    for path in sorted(folder.glob("*.json")):
        through = sum(size for ends, size in files.items() if path.stem in ends) / 1e6
        seconds = json.loads(path.read_text())
        report.row("roles", question=kind, role=path.stem, cpu_seconds=seconds, megabytes=through)
    here = alone(session, x)
    question = session.question
    report.say(session.sums.guarantee)
    z = (value - question.exact(question.summary(x))) / error
    report.row(
        "servers",
        question=kind,
        identical=torch.equal(value, here.value) and n == len(x),
        measured_over_predicted_variance=z.square().mean(),
        standard_error=(2 / z.numel()) ** 0.5,
    )
    report.row(
        "bytes",
        question=kind,
        words=payload(folder / "session", session),
        formula=session.sums.payload_bytes,
        files=sum(files.values()),
    )
    return here


def payload(folder, session):
    """Bytes of the words in all frames with shares and sums."""
    parts = sum(-(-party.clients // session.sums.at_once) for party in session.organisations)
    frames = (parts + 1) * len(session.servers)
    files = [*folder.glob("*.frames"), *folder.glob("*.sum")]
    return sum(path.stat().st_size for path in files) - frames * (HEADER_BYTES + TAG_BYTES)


def loss(question: regression.GramRelease, found, x, report):
    """Regression from the roles' release beside that from a curator's."""
    moments = regression.SecondMoments.of(x)
    central = replace(question, model=Model.CENTRAL)
    curator = central.sample_estimate(moments, generator=keyed_generator(b"curator"))
    ratio = partial(regression.phi, moments, ridge=RIDGE)
    solve = partial(regression.adaptive_ridge, ridge=RIDGE)
    report.row(
        "regression", clients=len(x), roles=ratio(solve(found)), curator=ratio(solve(curator))
    )


@on_host
def measure(config, report):
    torch.set_num_threads(1)
    sketch_question, sketch_rows = sketch(config)
    gram_question, gram_rows = gram(config)
    with tempfile.TemporaryDirectory() as parent:
        of_sketch = Path(parent, "sketch")
        of_gram = Path(parent, "gram")
        sketch_session = prepared(of_sketch, sketch_question, sketch_rows, config)
        gram_session = prepared(of_gram, gram_question, gram_rows, config)
        played(config, [of_sketch, of_gram])
        compare("sketch", of_sketch, sketch_session, sketch_rows, report)
        found = compare("gram", of_gram, gram_session, gram_rows, report)
    loss(gram_question, found, gram_rows, report)


EXPERIMENT = Experiment(measure, Config(), Config(20_000, 2, 2))

if __name__ == "__main__":
    EXPERIMENT.main()
