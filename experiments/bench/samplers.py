"""Counter-driven samplers beside plain torch and numpy: nanoseconds a draw, and memory of sums over users.

What: draws by inversion (Poisson, negative binomial), normals on a half line; then the
    sum over n users of one draw for each of 768 columns. The same integers on every device; on a CUDA device the fused
    kernels, and as a ceiling 64-bit words of torch's own generator, written to memory and not looked at.
Command:  OMP_NUM_THREADS=1 python experiments/bench/samplers.py
Expected: on a CPU negative binomials by inversion take less time than torch's gamma-Poisson draws, Poisson numbers
    about twice that of torch.poisson, and half-line normals, which are a specification there, several times
    that of torch; memory of the sums does not grow with n, where torch's draws of all users at once
    take 8 bytes a draw and more. Compare ratios, machines are noisy.
Output: results/bench/samplers/*.csv: medians on one thread; growth of memory of a fresh process (on CUDA of the
    allocator).
Artifact: - | speed and memory
Status: on a CPU; on a GPU not yet measured
Time: one to three minutes; --smoke in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from clock import peak_bytes, seconds
from torch import Tensor

from torchdp.kernels import inversion, truncated_normal
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

COLUMNS = 768
WAYS = ("draws", "sums", "torch", "numpy")
SETUP = """
import torch
from torchdp.kernels import inversion
from torchdp.randomness import keyed_generator
device = torch.device("{device}")
generator = keyed_generator(b"bench", device)
table = inversion.negative_binomial(1e-3, 0.9).to(device)
shape = torch.full((2, 2), 1e-3, dtype=torch.float64, device=device)
inversion.column_sums(table, 1, 2, 8)
torch.poisson(torch._standard_gamma(shape, generator=generator), generator=generator).sum(0)
"""
STATEMENTS = {  # sums over n users of one draw for each column
    "inversion, NB(1e-3, 0.9)": "inversion.column_sums(table, 1, {n}, {columns})",
    "torch, gamma-Poisson at once": "torch.poisson(torch._standard_gamma(shape.new_full(({n}, {columns}), 1e-3), "
    "generator=generator) * 9, generator=generator).sum(0)",
}


def laws(users: int, device: torch.device) -> dict[str, dict[str, Callable[[], object]]]:
    """For each law, what draws ``users`` x COLUMNS numbers of it, by library."""
    generator, rng = keyed_generator(b"samplers", device), np.random.default_rng(0)
    shape = (users, COLUMNS)

    def full(value: float) -> Tensor:
        return torch.full(shape, value, dtype=torch.float64, device=device)

    def gamma_poisson(r: float, p: float) -> Tensor:
        rate = torch._standard_gamma(full(r), generator=generator) * (p / (1 - p))
        return torch.poisson(rate, generator=generator)

    def inverted(table: inversion.Table) -> dict[str, Callable[[], object]]:
        table = table.to(device)
        return {
            "draws": lambda: inversion.draws(table, 1, users, COLUMNS),
            "sums": lambda: inversion.column_sums(table, 1, users, COLUMNS),
        }

    rows: dict[str, dict[str, Callable[[], object]]] = {}
    for mean in (1e-6, 0.5, 100.0):
        rows[f"Poisson({mean:g})"] = {
            **inverted(inversion.poisson(mean)),
            "torch": lambda mean=mean: torch.poisson(full(mean), generator=generator),
            "numpy": lambda mean=mean: rng.poisson(mean, shape),
        }
    for r, p in ((1e-3, 0.9), (2.5, 0.5)):
        rows[f"NB({r:g}, {p:g})"] = {
            **inverted(inversion.negative_binomial(r, p)),
            "torch": lambda r=r, p=p: gamma_poisson(r, p),
            "numpy": lambda r=r, p=p: rng.negative_binomial(r, 1 - p, shape),
        }
    survival = 0.5 * torch.special.erfc(full(2.0) / 2**0.5)
    rows["normal given >= 2"] = {
        "draws": lambda: truncated_normal.draws(1, users * COLUMNS, 2.0, device=device),
        "torch": lambda: (
            -torch.special.ndtri(
                survival * torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
            )
        ),
    }
    return rows


def memory(statement: str, n: int, device: torch.device) -> int:
    """Bytes by which memory grows, at its highest."""
    setup, statement = SETUP.format(device=device), statement.format(n=n, columns=COLUMNS)
    if device.type == "cpu":
        return peak_bytes(setup, statement)
    scope: dict[str, object] = {}
    exec(setup, scope)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    exec(statement, scope)
    return torch.cuda.max_memory_allocated(device) - before


@dataclass(frozen=True)
class Config:
    device: str = "cpu"
    users: int = 0  # none: 130, on CUDA 20,000
    least: float = 0.5  # seconds of runs
    sizes: tuple[int, ...] = (500, 2_000, 8_000)


FULL = Config()
SMOKE = Config(users=5, least=0.01, sizes=(10, 50))


def measure(config: Config, report: Report) -> None:
    device, least = torch.device(config.device), config.least
    torch.set_num_threads(1)
    users = config.users or (20_000 if device.type == "cuda" else 130)
    if device.type == "cuda":
        words = torch.empty((users, COLUMNS), dtype=torch.int64, device=device)
        each = seconds(lambda: words.random_(generator=keyed_generator(b"ceiling", device)), least) / words.numel()
        report.say(f"ceiling: {each * 1e9:.4f} ns for each 64-bit word that torch writes")
    report.say("nanoseconds a draw")
    for name, ways in laws(users, device).items():
        times = {way: seconds(ways[way], least) / (users * COLUMNS) * 1e9 if way in ways else None for way in WAYS}
        report.row("draws", law=name, **times)
    report.say("\nsums over n users")
    for name, statement in STATEMENTS.items():
        for n in config.sizes:
            report.row("memory", sums=name, n=n, MiB=memory(statement, n, device) / 2**20)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
