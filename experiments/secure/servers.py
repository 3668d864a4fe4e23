"""A private sketch by separate processes, three servers, the clients, the analyst: bit for bit what one process gives.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), "Distributed Differentially Private Data Analytics via Secure
    Sketching", section 6.1: the servers' transform on additive shares.
Command:  python experiments/secure/servers.py                                     all processes started here, or
          torchrun --nproc-per-node 5 experiments/secure/servers.py --secret $(openssl rand -hex 32)
Expected: "identical" is True; the words on the links take 8 S (s n d + m d) bytes, and the analyst gets m d words from
    each server. Under torchrun everything secret is derived from one number, to be new in every run: for a
    demonstration on one machine, not for a deployment, where each link and the clients have their own.
Output: results/secure/servers/*.csv.
Artifact: Burkhardt et al. (2025) | section 6.1
Status: agrees, on one machine
Time: half a minute on two cores, most of it starting the processes; --smoke (few clients, two servers) likewise.
    On the CPU, whatever --device says.
"""

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate
from torchdp.randomness import keyed_generator
from torchdp.secure import SecureSketch, run_processes, take_part
from torchdp.secure.frames import HEADER_BYTES, TAG_BYTES, Kind, header_of
from torchdp.secure.processes import links_of_all, parties
from torchdp.simulate import Experiment, Report
from torchdp.sketching import AdaptiveCoalition, balanced_osnap
from torchdp.threads import on_host


@dataclass(frozen=True)
class Config:
    clients: int = 200_000
    servers: int = 3
    secret: str = ""  # 64 hexadecimal digits, the same for all processes of torchrun


FULL = Config()
SMOKE = Config(2_000, 2)
COLUMNS, HEIGHT, COPIES, EPSILON, DELTA = 10, 100, 2, 0.5, 1e-6


def setting(config: Config) -> tuple[SecureSketch, Tensor]:
    """The public parameters, and rows of norm at most 1; a function of nothing secret, the same in every process."""
    clients, servers = config.clients, config.servers
    sketch = balanced_osnap(clients, HEIGHT, COPIES, generator=keyed_generator(b"sketch"))
    protocol = SecureSketch(sketch, COLUMNS, 1.0, EPSILON, DELTA, servers=servers, coalition=AdaptiveCoalition(10))
    A = torch.randn(clients, COLUMNS, dtype=torch.float64, generator=keyed_generator(b"data"))
    return protocol, A / A.norm(dim=1, keepdim=True)


def compare(protocol: SecureSketch, A: Tensor, release: Estimate, seed: int, report: Report) -> None:
    """Compare with the protocol in one process and with the noise that was predicted."""
    here = protocol.estimate(A, noise=SeededNoise(seed))
    z = (release.value - protocol.sketch.apply(A)) / release.standard_error
    report.say(protocol.guarantee)
    report.row(
        "servers",
        identical=torch.equal(release.value, here.value),
        measured_over_predicted_variance=z.square().mean(),
        standard_error=(2 / z.numel()) ** 0.5,
    )


def here(config: Config, report: Report) -> None:
    """Start every party on this machine and read what they sent."""
    protocol, A = setting(config)
    seed = int.from_bytes(os.urandom(32), "little")  # known here, so that the bits can be compared
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        release = run_processes(protocol, A, seed=seed, record=Path(folder))
        report.say(f"{', '.join(parties(protocol))}: {time.perf_counter() - start:.1f} seconds with their start")
        sent = [item for path in sorted(Path(folder).iterdir()) for item in torch.load(path)]
    words = [(to, header_of(frame).kind, len(frame) - HEADER_BYTES - TAG_BYTES) for to, frame in sent]
    payload = sum(length for _, kind, length in words if kind is not Kind.ROLL)
    report.row(
        "bytes",
        words=payload,
        formula=protocol.payload_bytes,
        headers_tags_and_rolls=sum(len(frame) for _, frame in sent) - payload,
        words_to_the_analyst=sum(length for to, _, length in words if to == "analyst"),
    )
    compare(protocol, A, release, seed, report)


def under_torchrun(config: Config, secret: bytes, report: Report) -> None:
    """Be the party of this process's rank."""
    protocol, A = setting(config)
    rank, seed = int(os.environ["RANK"]), int.from_bytes(hashlib.sha256(b"noise" + secret).digest(), "little")
    nonce, name = hashlib.sha256(b"nonce" + secret).digest(), parties(protocol)[rank]
    links, clients = links_of_all(protocol, nonce, secret)[name], name == "clients"
    release = take_part(
        protocol, nonce, rank, links, x=A if clients else None, noise=SeededNoise(seed) if clients else None
    )
    if release is not None:
        compare(protocol, A, release, seed, report)


@on_host
def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    secret = bytes.fromhex(config.secret)
    if "RANK" not in os.environ:
        here(config, report)
    elif len(secret) < 32:
        raise SystemExit("--secret must be given under torchrun, 64 hexadecimal digits")
    else:
        under_torchrun(config, secret, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
