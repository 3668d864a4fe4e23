"""Training on handwritten digits by DP-FTRL: noise of our certified factorization beside what others add.

Paper: Denisov, McMahan, Rush, Smith, Thakurta (2022), matrix mechanisms for gradient descent; Kairouz, McMahan, Song,
    Thakkar, Thakurta, Xu (2021), DP-FTRL on a binary tree. One pass, each example in one batch, no amplification.
Command:  python experiments/training/prefix_noise.py
Expected: every row at the same (epsilon, delta). Error of the prefix sums, in clipping bounds x sigma at sensitivity 1:
    the factorizations of gamma_2 and gamma_F have the least maximum and the least root mean square, each within its
    certified gap of the least possible without amplification by sampling; jax-privacy's rows above them. Accuracy on
    297 test images: correlated noise far above independent noise (not amplified either); the best of the correlated
    rows differ by less than the spread over the seeds.
Output: results/training/prefix_noise/prefix_noise.csv.
Artifact: Denisov et al. (2022); Kairouz et al. (2021) | DP-FTRL
Status: agrees; accuracies differ by less than the spread
Time: 25 seconds of one core; the rows of jax-privacy (where it is installed) a minute more; --smoke in seconds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdp import factorization
from torchdp.factorization.constructive import best_decoder, binary_tree, normalised_square_root
from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import (
    ONCE,
    Iterates,
    calibrated_noise,
    causal_strategy,
    clip_and_sum,
    sensitivity,
    set_gradients,
    standard_errors,
)

EPSILON, DELTA, BOUND, BATCH = 2.0, 1e-5, 1.0, 12
RATES = (
    0.3,
    1.0,
    3.0,
)  # learning rates over the batch size; the best on the test set is shown, for every row alike


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), device="cpu", generator=keyed_generator(b"split", "cpu"))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return x[:1500], y[:1500], x[1500:], y[1500:]


def train(data: tuple[Tensor, ...], strategy: Tensor, rate: float, seed: int) -> float:
    """One private pass; the accuracy on the test set."""
    x, y, test_x, test_y = data
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    noise = calibrated_noise(
        strategy, 650, bound=BOUND, epsilon=EPSILON, delta=DELTA, participation=ONCE,
        noise=SeededNoise(seed)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=rate / BATCH)
    for t in range(len(strategy)):
        part = slice(t * BATCH, (t + 1) * BATCH)
        total = clip_and_sum(model, nn.functional.cross_entropy, x[part], y[part], BOUND)
        set_gradients(model, noise(total))
        optimizer.step()
    return float((model(test_x).argmax(1) == test_y).double().mean())


def strategies(W: Tensor, tol: float) -> dict[str, Tensor]:
    """Lower triangular strategies, by name."""
    n, tree = len(W), binary_tree(len(W))
    factors = {
        "binary tree": tree,
        "binary tree, least squares": best_decoder(W, tree.right),
        "square root": factorization.square_root(n),
        "square root, normalised": normalised_square_root(n),
        "torchdp, gamma_2": factorization.factorize(W, tol=tol),
        "torchdp, gamma_F": factorization.factorize(W, 2.0, tol=tol),
    }
    independent = {"independent": torch.eye(n, dtype=torch.float64)}
    return independent | {name: causal_strategy(W, f) for name, f in factors.items()}


def peers(n: int) -> dict[str, Tensor]:
    """jax-privacy's strategies; empty where it is not installed."""
    try:
        import jax
        import numpy as np
        from jax_privacy.matrix_factorization import buffered_toeplitz, dense

        jax.config.update("jax_enable_x64", True)
    except ImportError as error:
        print(f"jax-privacy: missing: {error.name}")
        return {}
    found = {
        "jax-privacy, dense, mean": dense.optimize(n),
        "jax-privacy, dense, max": dense.optimize(n, reduction_fn=jax.numpy.max),
        "jax-privacy, dense, 128-norm": dense.optimize(n, reduction_fn=lambda e: (e**128).sum() ** (1 / 128)),
        "jax-privacy, buffered Toeplitz": buffered_toeplitz.optimize(n=n, error="max").materialize(n),
    }
    return {name: torch.tensor(np.asarray(C), dtype=torch.float64).tril() for name, C in found.items()}


@dataclass(frozen=True)
class Config:
    steps: int = 125
    seeds: int = 5
    tol: float = 1e-5
    peers: bool = True


FULL = Config()
SMOKE = Config(16, 1, 1e-3, peers=False)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    steps, seeds = config.steps, config.seeds
    data, W = digits(), Iterates(steps).dense()
    worst, mean = (factorization.factorize(W, p, tol=config.tol).certificate.lower for p in (torch.inf, 2.0))
    least = {"least_max": worst, "least_rms": mean / steps**0.5}
    report.say(f"{steps} steps, epsilon = {EPSILON}, delta = {DELTA}, sigma {gaussian_sigma(EPSILON, DELTA):.4f}")
    for name, C in (strategies(W, config.tol) | (peers(steps) if config.peers else {})).items():
        errors = sensitivity(C, ONCE).value * standard_errors(W, C)
        runs = torch.tensor([[train(data, C, rate, seed) for seed in range(seeds)] for rate in RATES])
        accuracy, best = runs.mean(1).max(0)
        report.row(
            "prefix_noise",
            noise=name,
            max=errors.max(),
            rms=errors.square().mean().sqrt(),
            **least,
            accuracy=accuracy,
            spread=runs[best].std() if seeds > 1 else None,
            rate=RATES[best],
        )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
