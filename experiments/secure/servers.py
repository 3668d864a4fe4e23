"""A private sketch by separate processes, three servers, the clients, the analyst: bit for bit what one process gives.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), "Distributed Differentially Private Data Analytics via Secure
    Sketching", section 6.1: the servers' transform on additive shares.
Command:  python experiments/secure/servers.py                                     all processes started here, or
          torchrun --nproc-per-node 5 experiments/secure/servers.py --secret $(openssl rand -hex 32)
Expected: "identical: True"; the bytes of words on the links are 8 S (s n d + m d), and the analyst's are m d words from
    each server. Under torchrun everything secret is derived from one number, to be new in every run: for a
    demonstration on one machine, not for a deployment, where each link and the clients have their own.
Time: half a minute on two cores, most of it starting the processes; --smoke (few clients, two servers) likewise.
"""

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.secure import Links, SecureSketch, run_processes, take_part
from torchdp.secure.frames import HEADER_BYTES, TAG_BYTES, Kind, header_of
from torchdp.secure.processes import parties
from torchdp.sketching import AdaptiveCoalition, balanced_osnap

COLUMNS, HEIGHT, COPIES, EPSILON, DELTA = 10, 100, 2, 0.5, 1e-6


def setting(smoke: bool) -> tuple[SecureSketch, Tensor]:
    """The public parameters, and rows of norm at most 1; a function of nothing secret, the same in every process."""
    clients, servers = (2_000, 2) if smoke else (200_000, 3)
    sketch = balanced_osnap(clients, HEIGHT, COPIES, generator=keyed_generator(b"sketch"))
    protocol = SecureSketch(sketch, COLUMNS, 1.0, EPSILON, DELTA, servers=servers, coalition=AdaptiveCoalition(10))
    A = torch.randn(clients, COLUMNS, dtype=torch.float64, generator=keyed_generator(b"data"))
    return protocol, A / A.norm(dim=1, keepdim=True)


def report(protocol: SecureSketch, A: Tensor, release: Tensor, seed: int) -> None:
    """Compare with the protocol in one process and with the noise that was predicted."""
    here = protocol.release(A, noise=SeededNoise(seed))
    z = (release - protocol.sketch.apply(A)) / protocol.noise_variance.sqrt()[:, None]
    print(protocol.guarantee)
    print(f"identical: {torch.equal(release, here)}")
    print(f"noise: measured / predicted variance {float(z.square().mean()):.3f} +- {(2 / z.numel()) ** 0.5:.3f}")


def here(smoke: bool) -> None:
    """Start every party on this machine and read what they sent."""
    protocol, A = setting(smoke)
    seed = int.from_bytes(os.urandom(32), "little")  # known here, so that the bits can be compared
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        release = run_processes(protocol, A, seed=seed, record=Path(folder))
        print(f"{', '.join(parties(protocol))}: {time.perf_counter() - start:.1f} seconds with their start")
        sent = [item for path in sorted(Path(folder).iterdir()) for item in torch.load(path)]
    words = [(to, header_of(frame).kind, len(frame) - HEADER_BYTES - TAG_BYTES) for to, frame in sent]
    payload = sum(length for _, kind, length in words if kind is not Kind.ROLL)
    print(f"bytes of words on the links: {payload}, by the formula {protocol.payload_bytes}")
    print(f"headers, tags and roll calls: {sum(len(frame) for _, frame in sent) - payload} bytes more")
    print(
        f"the analyst received frames of {[length for to, _, length in words if to == 'analyst']} bytes of words"
    )
    report(protocol, A, release, seed)


def under_torchrun(smoke: bool, secret: bytes) -> None:
    """Be the party of this process's rank."""
    protocol, A = setting(smoke)
    rank, seed = int(os.environ["RANK"]), int.from_bytes(hashlib.sha256(b"noise" + secret).digest(), "little")
    name, clients = parties(protocol)[rank], parties(protocol)[rank] == "clients"
    release = take_part(
        protocol, hashlib.sha256(b"nonce" + secret).digest(), rank, Links.derived(secret, name, protocol.servers),
        A=A if clients else None, noise=SeededNoise(seed) if clients else None,
    )  # fmt: skip
    if release is not None:
        report(protocol, A, release, seed)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument(
        "--secret", type=bytes.fromhex, help="64 hexadecimal digits, the same for all processes"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        here(options.smoke)
    elif options.secret is None or len(options.secret) < 32:
        arguments.error("--secret must be given under torchrun, 64 hexadecimal digits")
    else:
        under_torchrun(options.smoke, options.secret)


if __name__ == "__main__":
    main()
