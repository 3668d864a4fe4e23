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


FULL, SMOKE = Config(), Config(20_000, 2, 2)
COLUMNS, HEIGHT, COPIES, EPSILON, DELTA, RIDGE = 10, 100, 2, 0.5, 1e-6, 10.0
WAIT = 600.0
Question = SecureSketch | SharedSum


def sketch(config):
    """A sketch of rows of norm 1, without the noise of one client in 200: no row holds more than an
    organisation.
    """
    osnap = balanced_osnap(config.clients, HEIGHT, COPIES, generator=keyed_generator(b"sketch"))
    x = torch.randn(
        config.clients, COLUMNS, dtype=torch.float64, generator=keyed_generator(b"data")
    )
    coalition = AdaptiveCoalition(config.clients // 200)
    return SecureSketch(osnap, COLUMNS, 1.0, EPSILON, DELTA, coalition=coalition), x / x.norm(
        dim=1, keepdim=True
    )


def gram(config):
    """Second moments of rows in [-1, 1]^10 and a label."""
    generator = keyed_generator(b"gram")
    rows = torch.rand(config.clients, COLUMNS, dtype=torch.float64, generator=generator) * 2 - 1
    noise = 0.3 * torch.randn(config.clients, 1, dtype=torch.float64, generator=generator)
    labels = (rows.sum(1, keepdim=True) / 5 + noise).clamp(-1, 1)
    question = regression.GramRelease(
        config.clients, COLUMNS, COLUMNS**0.5, EPSILON, DELTA, label_bound=1.0
    )
    return question, torch.cat([rows, labels], 1)


def sizes(config):
    """Clients of each organisation, no two alike."""
    whole = sum(range(1, config.organisations + 1))
    found = [config.clients * i // whole for i in range(1, config.organisations)]
    return {f"organisation-{i}": n for i, n in enumerate([*found, config.clients - sum(found)])}


def play(name, folders: list[Path]):
    """One party in a process of its own, in one session after another; writes down its CPU seconds
    in each.
    """
    torch.set_num_threads(1)
    for folder in folders:
        key, at, start = KeyFile(folder / f"{name}.key"), folder / "session", time.process_time()
        if name == "analyst":
            found = secure.release(at, key, wait=WAIT)
            torch.save((found.value, found.standard_error, found.n), folder / "release.pt")
        elif name.startswith("server"):
            secure.serve(at, key, wait=WAIT)
        else:
            secure.submit(
                at,
                key,
                torch.load(folder / f"{name}.pt"),
                noise=SeededNoise(int(name.split("-")[1])),
            )
        (folder / f"{name}.json").write_text(json.dumps(time.process_time() - start))


def prepared(folder, question, x, config):
    """A session with everybody's key, and each organisation's rows."""
    folder.mkdir()
    clients, servers = sizes(config), [f"server-{k}" for k in range(config.servers)]
    secure.new_keys(folder, *servers, *clients, "analyst")

    def party(name) -> secure.Party:
        return secure.Party(name, KeyFile(folder / f"{name}.key").public, clients.get(name, 0))

    parties = (tuple(map(party, names)) for names in (servers, clients))
    session = Session(question, *parties, party("analyst"))
    secure.open_session(folder / "session", session)
    for party in session.parties:
        KeyFile(folder / f"{party.name}.key").join(session, session.fingerprint)
    for name, part in zip(clients, x.split(list(clients.values())), strict=True):
        torch.save(part.clone(), folder / f"{name}.pt")
    return session


def played(config, folders: list[Path]):
    """All parties, each in its process."""
    context = multiprocessing.get_context("forkserver")  # imports once
    names = [*(f"server-{k}" for k in range(config.servers)), *sizes(config), "analyst"]
    running = [context.Process(target=play, args=(name, folders)) for name in names]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a party ended with code {process.exitcode}")


def alone(session, x):
    """The release by one process, from the same sources."""
    question, sent = session.question, []
    for i, party in enumerate(session.organisations):
        first = session.first(party)
        part = x[first : first + party.clients]
        sent.append(question.tally(question.randomize(part, first=first, noise=SeededNoise(i))))
    return question.analyse(question.add(*sent))


def compare(kind, folder, session, x, report):
    """Report whether one process gives the same bits, and what every role sent and took; returns
    the release.
    """
    value, error, n = torch.load(folder / "release.pt")
    files = {
        tuple(path.name.split(".")): path.stat().st_size
        for path in (folder / "session").glob("*.*.*")
    }
    for path in sorted(folder.glob("*.json")):
        through = sum(size for ends, size in files.items() if path.stem in ends) / 1e6
        seconds = json.loads(path.read_text())
        report.row("roles", question=kind, role=path.stem, cpu_seconds=seconds, megabytes=through)
    here, question = alone(session, x), session.question
    report.say(session.sums.guarantee)
    z = (value - question.exact(question.summary(x))) / error
    report.row(
        "servers",
        question=kind,
        identical=torch.equal(value, here.value) and n == len(x),
        measured_over_predicted_variance=z.square().mean(),
        standard_error=(2 / z.numel()) ** 0.5,
    )
    words, formula = payload(folder / "session", session), session.sums.payload_bytes
    report.row("bytes", question=kind, words=words, formula=formula, files=sum(files.values()))
    return here


def payload(folder, session):
    """Bytes of the words in all frames with shares and sums."""
    parts = sum(-(-party.clients // session.sums.at_once) for party in session.organisations)
    frames = (parts + 1) * len(session.servers)
    files = [*folder.glob("*.frames"), *folder.glob("*.sum")]
    return sum(path.stat().st_size for path in files) - frames * (HEADER_BYTES + TAG_BYTES)


def loss(question: regression.GramRelease, found, x, report):
    """Regression from the roles' release beside that from a curator's."""
    moments, central = regression.SecondMoments.of(x), replace(question, model=Model.CENTRAL)
    curator = central.sample_estimate(moments, generator=keyed_generator(b"curator"))
    ratio = partial(regression.phi, moments, ridge=RIDGE)
    solve = partial(regression.adaptive_ridge, ridge=RIDGE)
    report.row(
        "regression", clients=len(x), roles=ratio(solve(found)), curator=ratio(solve(curator))
    )


@on_host
def measure(config, report):
    torch.set_num_threads(1)
    asked = {"sketch": sketch(config), "gram": gram(config)}
    with tempfile.TemporaryDirectory() as made:
        folders = {kind: Path(made, kind) for kind in asked}
        sessions = {kind: prepared(folders[kind], *asked[kind], config) for kind in asked}
        played(config, list(folders.values()))
        found = {
            kind: compare(kind, folders[kind], sessions[kind], asked[kind][1], report)
            for kind in asked
        }
    loss(asked["gram"][0], found["gram"], asked["gram"][1], report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
