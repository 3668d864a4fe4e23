"""Noise of the linear-transformation model: what the paper adds, what is needed, and a check by Monte Carlo.

Paper: Corollaries 4.7 and 4.10 and Section 6.2 of arXiv 2412.00497 (ICML 2025), against exact calibration.
Command:  python experiments/sketching/noise.py
Prints: (1) variance of an entry of the release, exact and by Corollary 4.7, d = 10, m = 100, entries in [-1, 1], delta
    = 1e-6; (2) variance over the least when t' clients are corrupt, s = 1; (3) the same where one copy of noise serves
    all copies of the sketch; (4) the true epsilon of the paper's noise; (5) the delta of drawn noise at epsilon = 1,
    calibrated to 1e-3, with a z-score, beside noise that is 10 % too small.
Expected: (1) ratios 13.6 / 12.4 / 10.1 at s = 1, 15542 at s = 10 and epsilon = .05; (2) static within .5 % of
    n/(n - t'), with equally full rows within .1 %; (4) true epsilon .540 at nominal .5 for d = s = 1; (5) |z| < 4 for
    each noise, and each planted one FLAGGED.
Time: about 20 s on one core; --smoke in seconds.
"""

import argparse
import math

import torch

from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.sketching import (
    AdaptiveCoalition,
    Coalition,
    DivisibleNoise,
    GaussianNoise,
    OneCopyGaussianNoise,
    Sketch,
    StaticCoalition,
    balanced_count_sketch,
    balanced_osnap,
    count_sketch,
    entry_variance,
    one_copy_sigma,
    osnap,
    paper_experiment_noise,
    paper_gaussian_noise,
    paper_laplace_noise,
    rademacher,
    row_sigma,
    single_sigma,
)

DELTA, HEIGHT, COLUMNS = 1e-6, 100, 10
EPSILONS, COPIES = (0.05, 0.1, 0.5), (1, 2, 5, 10)
CROWDS = ((10**5, 0), (10**5, 1000), (10**5, 10**4), (10**6, 1000), (10**6, 10**4), (10**6, 10**5))
ONE_COPY = ((20_000, 100, 1), (20_000, 100, 4), (100_000, 100, 4), (100_000, 100, 10), (200_000, 500, 8))
LOOSE, Z = 1e-3, 4.0  # delta of the Monte Carlo check; deviations that are flagged


def noise_table(users: int, generator: torch.Generator) -> None:
    """Corollary 4.7 over the least variance, and the closed form of the ratio."""
    print(f"(1) entry variance of the release, n = {users}, d = {COLUMNS}, m = {HEIGHT}, delta = {DELTA:g}")
    print(
        f"{'epsilon':>8}{'V exact':>12}{'s':>4}{'V of 4.7':>12}{'ratio':>10}{'sd':>8}{'s^3 d ln(.)(mu*/eps)^2':>25}"
    )
    sketches = [balanced_osnap(users, HEIGHT, s, generator=generator) for s in COPIES]
    for epsilon in EPSILONS:
        least = entry_variance(math.sqrt(COLUMNS), epsilon=epsilon, delta=DELTA)
        for sketch in sketches:
            s = sketch.copies
            paper = paper_gaussian_noise(sketch, COLUMNS, 1.0, epsilon=epsilon, delta=DELTA)
            variance = float(paper.variance(sketch).mean())
            mu = 1 / gaussian_sigma(epsilon, DELTA)
            formula = s**3 * COLUMNS * math.log(1.25 * s * COLUMNS / DELTA) * (mu / epsilon) ** 2
            print(
                f"{epsilon:>8g}{least:>12.4g}{s:>4}{variance:>12.4g}{variance / least:>10.1f}"
                f"{math.sqrt(variance / least):>8.2f}{formula:>25.1f}"
            )


def overhead(sketch: Sketch, coalition: Coalition) -> str:
    """Entry variance over the least, with one sigma and with one for each row."""
    least = entry_variance(1.0, epsilon=0.1, delta=DELTA)
    try:
        one = GaussianNoise(single_sigma(sketch, 1.0, epsilon=0.1, delta=DELTA, coalition=coalition))
        each = GaussianNoise(row_sigma(sketch, 1.0, epsilon=0.1, delta=DELTA, coalition=coalition))
    except ValueError:
        return "abstain"
    return f"{float(one.variance(sketch).mean()) / least:.3f} ({float(each.variance(sketch).mean()) / least:.3f})"


def bounded(sketch: Sketch, coalition: Coalition) -> str:
    """The same where every row's honest clients are bounded at once, by the quantiles that pure noise uses."""
    kept = coalition.honest(sketch, DELTA)
    rest = entry_variance(1.0, epsilon=0.1, delta=DELTA - coalition.slack(DELTA))
    cost = rest / entry_variance(1.0, epsilon=0.1, delta=DELTA)
    return f"{cost * sketch.clients / sketch.height / float(kept.min()):.3f}"


def coalition_table(crowds: tuple[tuple[int, int], ...], generator: torch.Generator) -> None:
    """Paper's count of honest clients beside the exact ones."""
    print(
        f"\n(2) variance over the least with t' corrupt clients, s = 1, m = {HEIGHT}: one sigma (one for each row);"
    )
    print("    adaptive: chosen after the sketch, static: before, delta averaged or all rows bounded at once")
    titles = ("paper", "adaptive, uniform", "static, uniform", "static, balanced", "bounded, uniform", "balanced")
    print(f"{'n':>8}{'t-prime':>8}" + "".join(f"{title:>18}" for title in (*titles, "n/(n - t')")))
    for users, corrupt in crowds:
        uniform = count_sketch(users, HEIGHT, generator=generator)
        balanced = balanced_count_sketch(users, HEIGHT, generator=generator)
        static = StaticCoalition(corrupt) if corrupt else AdaptiveCoalition()
        cells = (
            f"{2 * users / (users - 1 - corrupt):.3f}",
            overhead(uniform, AdaptiveCoalition(corrupt)),
            overhead(uniform, static),
            overhead(balanced, static),
            bounded(uniform, static),
            bounded(balanced, static),
            f"{users / (users - corrupt):.3f}",
        )
        print(f"{users:>8}{corrupt:>8}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def one_copy_table(sizes: tuple[tuple[int, int, int], ...], generator: torch.Generator) -> None:
    """By the largest leverage, and averaged over the clients', with nobody and with 1 % corrupt."""
    print("\n(3) one copy of noise for all copies of a uniform sketch: variance over the least")
    print(f"{'n':>8}{'m':>6}{'s':>4}{'all honest, given S':>22}{'averaged over S':>18}{'1 % corrupt, static':>22}")
    least = entry_variance(1.0, epsilon=0.1, delta=DELTA)
    for users, height, copies in sizes:
        sketch = osnap(users, height, copies, generator=generator)
        cells = []
        for coalition in (AdaptiveCoalition(), StaticCoalition(0), StaticCoalition(users // 100)):
            sigma = one_copy_sigma(sketch, 1.0, epsilon=0.1, delta=DELTA, coalition=coalition)
            cells.append(float(OneCopyGaussianNoise(sigma).variance(sketch).mean()) / least)
        print(f"{users:>8}{height:>6}{copies:>4}{cells[0]:>22.3f}{cells[1]:>18.3f}{cells[2]:>22.3f}", flush=True)


def paper_table(users: int, generator: torch.Generator) -> None:
    """What the paper's noise promises in truth."""
    print(f"\n(4) true epsilon at delta = {DELTA:g}, m = {HEIGHT}, n = {users}, entries in [-1, 1]")
    sketch = balanced_count_sketch(users, HEIGHT, generator=generator)
    for columns, nominal in ((1, 0.5), (1, 1.0), (2, 0.5), (10, 0.5)):
        noise = paper_gaussian_noise(sketch, columns, 1.0, epsilon=nominal, delta=DELTA)
        true = noise.guarantee(sketch, math.sqrt(columns), delta=DELTA).epsilon
        broken = "  more than it promises" if true > nominal else ""
        print(f"Corollary 4.7, s = 1, d = {columns:>2}: nominal {nominal:g}, true {true:.3f}{broken}")
    dense = rademacher(2000, 20, generator=generator)
    laplace = paper_laplace_noise(dense, COLUMNS, 1.0, epsilon=0.5).guarantee(dense, COLUMNS)
    print(f"Corollary 4.10, m = 20, d = {COLUMNS}: nominal 0.5, true {laplace.epsilon:.3f}")
    for columns in (3, 7, 11, 90):
        cells = []
        for nominal in (0.03, 0.1, 0.5):
            noise = paper_experiment_noise(sketch, epsilon=nominal, delta=DELTA)
            cells.append(f"{noise.guarantee(sketch, math.sqrt(columns), delta=DELTA).epsilon:.3g}")
        print(
            f"experiments' noise (inferred), {columns:>2} columns: nominal .03 / .1 / .5, true {' / '.join(cells)}"
        )


def drawn_delta(
    noise: DivisibleNoise, sketch: Sketch, covariance: torch.Tensor, client: int, draws: int, source: SeededNoise
) -> tuple[float, float]:
    """Hockey-stick divergence at epsilon = 1 of the release for rows at +-1, and its standard error; each column of
    the noise that the clients add is one draw. covariance: of the noise's rows, what the attacker believes it to be."""
    shift = 2 * sketch.dense()[:, client]
    direction = torch.linalg.solve(covariance, shift)
    noisy = noise.collect(sketch, torch.zeros(sketch.clients, draws), noise=source) / math.sqrt(sketch.copies)
    loss = direction @ noisy.double() + float(direction @ shift) / 2
    gain = (1 - (1 - loss).exp()).clamp_min(0)
    return float(gain.mean()), float(gain.std()) / math.sqrt(draws)


def monte_carlo(draws: int, generator: torch.Generator) -> None:
    """The noise that the honest clients add together, against the delta that it was calibrated to."""
    print(
        f"\n(5) delta of drawn noise at epsilon = 1, calibrated to {LOOSE:g}, {draws} draws; then noise 10 % smaller"
    )
    source = SeededNoise.of(generator)
    several, single = balanced_osnap(60, 12, 3, generator=generator), count_sketch(60, 3, generator=generator)
    gone = single.rows[0].eq(int(single.counts().argmin())).nonzero()[:10, 0]  # ten from the thinnest row
    honest = torch.ones(60, dtype=torch.bool)
    honest[gone] = False
    left, after = single.part(honest), AdaptiveCoalition(10)
    cases = (
        ("one sigma for each row, s = 3", several, GaussianNoise(row_sigma(several, 1.0, epsilon=1, delta=LOOSE))),
        ("one sigma, s = 3", several, GaussianNoise(single_sigma(several, 1.0, epsilon=1, delta=LOOSE))),
        (
            "one copy of noise, s = 3",
            several,
            OneCopyGaussianNoise(one_copy_sigma(several, 1.0, epsilon=1, delta=LOOSE)),
        ),
        (
            "ten corrupt in a row",
            left,
            GaussianNoise(row_sigma(single, 1.0, epsilon=1, delta=LOOSE, coalition=after)),
        ),
    )
    for name, sketch, noise in cases:
        one_copy = isinstance(noise, OneCopyGaussianNoise)
        client = int(sketch.leverages().argmax())
        for factor in (1.0, 0.9):
            used = type(noise)(factor * noise.sigma)
            covariance = used.sigma**2 * sketch.gram() if one_copy else used.variance(sketch).diag()
            found, error = drawn_delta(used, sketch, covariance, client, draws, source)
            z = (found - LOOSE) / error
            flag = "  FLAGGED" if z > Z else ""
            print(
                f"{name:<32}noise x {factor:g}: delta {found:.3e} +- {error:.1e}, z = {z:+.1f}{flag}", flush=True
            )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    generator = keyed_generator(b"noise of the linear-transformation model")
    noise_table(20_000 if smoke else 100_000, generator)
    coalition_table(CROWDS[:2] if smoke else CROWDS, generator)
    one_copy_table(ONE_COPY[:1] if smoke else ONE_COPY, generator)
    paper_table(20_000 if smoke else 1_000_000, generator)
    monte_carlo(100_000 if smoke else 400_000, generator)


if __name__ == "__main__":
    main()
