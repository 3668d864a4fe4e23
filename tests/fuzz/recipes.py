"""One call for each public way in, small enough to be made hundreds of times. Names: see :func:`names`.

Factorizations and pairwise statistics have their own tests of bad input; their recipes are still to be written.
"""

import importlib
from functools import cache

import torch

from torchdp.noise import SeededNoise

ROOMS = (
    "privacy workloads factorization randomizers queries pairwise domains mean "
    "sketching secure regression shuffle density training simulate"
)


@cache
def kept():
    """The rooms, and valid arguments that nobody changes."""
    found = {room: importlib.import_module(f"torchdp.{room}") for room in ROOMS.split()}
    number = {"dtype": torch.float64}
    points = torch.tensor([[0.6, 0.0], [0.0, -0.5], [0.3, 0.3]], **number)
    polytope = found["domains"].Polytope(points)
    features = found["density"].GaussianFourier(2, 1.0).draw(8, generator=torch.Generator().manual_seed(1))
    return found | {
        "torch": torch,
        "inf": float("inf"),
        "W": torch.tensor([[1.0, 0.0, 0.5], [1.0, 1.0, -0.5], [0.0, 1.0, 1.0]], **number),
        "types": torch.tensor([0, 1, 2, 2, 1]),
        "counts": torch.tensor([5, 3, 2]),
        "prior": torch.tensor([0.5, 0.3, 0.2], **number),
        "points": points,
        "rows": torch.cat([points, torch.tensor([[0.1, 0.2], [0.2, 0.1]], **number)]),
        "labels": torch.tensor([0.5, -0.5, 0.1, 0.2, 0.3], **number),
        "signs": torch.tensor([1, -1, 1, 1, -1]),
        "bits": torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]], dtype=torch.bool),
        "kernel": lambda x, y: (x[..., 0] - y[..., 0]).abs(),
        "trial": lambda generator, size: torch.rand(size, generator=generator, **number),
        "polytope": polytope,
        "shape": found["domains"].round_shape(polytope, 2.0),
        "features": features,
        "kde": found["density"].ShuffledKDE(features, found["shuffle"].PoissonSum(5, 50.0), 0.1),
        "once": found["training"].Once(),
    }


def names():
    """What a recipe may call; randomness is new each time."""
    return kept() | {"generator": torch.Generator().manual_seed(1), "noise": SeededNoise(1)}


PRIVACY = """
privacy.gaussian_sigma(1.0, 1e-5, 1.0)
privacy.gaussian_log_delta(1.0, 1.0, 1.0)
privacy.gaussian_guarantee(2.0, 1e-5, 1.0, privacy.Model.CENTRAL, privacy.Neighbours.REPLACE_ONE)
privacy.Guarantee(1.0, 0.0, privacy.Model.LOCAL, privacy.Neighbours.REPLACE_ONE, True, 'source')
privacy.compose([privacy.Guarantee(1.0, 0.0, privacy.Model.LOCAL, privacy.Neighbours.REPLACE_ONE, True, 'source')])
"""

WORKLOADS = """
workloads.prefix(4)
workloads.identity(4)
workloads.all_ranges(4)
workloads.absolute_difference(4, spacing=1.0)
workloads.auc(4)
workloads.kendall(2, 3)
workloads.marginals(3, 2)
workloads.marginal_tables(3, 2)
workloads.parities(3, 2)
workloads.sign(4)
workloads.unequal(4)
workloads.from_callable(kernel, points)
"""

RANDOMIZERS = "\n".join(
    f"randomizers.{name}(3, 1.0)\n"
    f"randomizers.{name}(3, 1.0).sample(types, noise=noise)\n"
    f"randomizers.{name}(3, 1.0).collect(types, noise=noise)\n"
    f"randomizers.{name}(3, 1.0).sample_reports(counts, generator=generator, sample_shape=(2,))\n"
    f"randomizers.{name}(3, 1.0).decode_counts({reports})\n"
    f"randomizers.{name}(3, 1.0).workload_variance(W)\n"
    f"randomizers.{name}(3, 1.0).answer({reports}, W)"
    for name, reports in (
        ("RandomizedResponse", "counts"),
        ("HadamardResponse", "torch.tensor([3, 3, 2, 2])"),
        ("OptimizedUnaryEncoding", "torch.tensor([3, 3, 2, 10])"),
        ("SymmetricUnaryEncoding", "torch.tensor([3, 3, 2, 10])"),
        ("SubsetSelection", "torch.tensor([3, 3, 2, 10])"),
    )
) + "\n".join(
    f"\nrandomizers.{name}(2, 1.0, 1.0{more})\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).sample(points, noise=noise)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).collect(points, counts, noise=noise)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).sample_sum(points, counts, generator=generator, sample_shape=(2,))\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).decode_sum(points)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).squared_error(0.5)"
    for name, more in (
        ("PrivUnit", ""),
        ("PrivUnitG", ""),
        ("ProjUnit", ", k=2"),
        ("DuchiJordanWainwright", ""),
        ("PointRelease", ""),
        ("GaussianVector", ", delta=1e-3"),
    )
)
RANDOMIZERS += """
randomizers.StrategyMatrix(torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]).double(), prior)
"""

QUERIES = """
queries.choose_central(W, 100, 1.0, 1e-5, prior=prior, tol=1e-2)
queries.conjunctions(3, 2)
queries.parities(3, 2)
queries.thresholds(3)
queries.stumps([2, 3])
queries.consistent(W, prior, tol=1e-6)
queries.factored(W, factorization.identity_strategy(W, 2.0))
queries.identity(W)
queries.plain(W)
queries.local_factorization(queries.plain(W), 1.0)
queries.local_factorization(queries.plain(W), 1.0).answer(types, noise=noise)
queries.local_factorization(queries.plain(W), 1.0).half_width(100, 0.05)
queries.CentralFactorization(queries.plain(W), 1.0, 1e-5)
queries.CentralFactorization(queries.plain(W), 1.0, 1e-5).answer(types, noise=noise)
queries.CentralFactorization(queries.plain(W), 1.0, 1e-5).predicted_mse(counts)
queries.CentralFactorization(queries.plain(W), 1.0, 1e-5).worst_error(100)
queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0))
queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0)).answer(types, noise=noise)
queries.LocalFactorization(queries.plain(W), randomizers.PrivUnit(3, 1.0, 9.0))
queries.PrivateLearner(queries.thresholds(3), 1.0)
queries.PrivateLearner(queries.thresholds(3), 1.0).learn(types[:, None], signs, noise=noise)
queries.thresholds(3).losses(types[:, None], signs)
queries.FactoredQueries(W, W, torch.eye(3).double(), torch.zeros(3).double())
"""

MEAN = """
domains.Box(-prior, prior)
domains.Ellipsoid(W, prior)
domains.FiniteSet(points)
domains.Polytope(points)
domains.Zonotope(W, prior)
domains.LpBall(prior, 2.0, prior)
domains.SchattenBall(2, 2, inf, 1.0)
domains.Product((domains.Box(-prior, prior), domains.FiniteSet(points)))
domains.lp_ball(3, 2.0, 1.0)
domains.linear_image(W, domains.Box(-prior, prior))
domains.minkowski_sum([domains.Box(-prior, prior), domains.Polytope(W)])
domains.KroneckerProduct(domains.Box(-prior, prior), domains.FiniteSet(points))
domains.noise_shape(domains.Box(-prior, prior), 2.0)
domains.difference_shape(polytope, 2.0)
domains.round_shape(domains.Box(-prior, prior), 2.0)
domains.least_error_shape(domains.Box(-prior, prior), 2.0)
mean.gaussian_mean(polytope, domains.noise_shape(polytope, 2.0), 1.0, 1e-5)
mean.gaussian_mean(polytope, shape, 1.0, 1e-5).estimate(points, noise=noise)
mean.concentrated_mean(polytope, shape, 1.0, 1e-5)
mean.local_mean(polytope, shape, 1.0)
mean.local_mean(polytope, shape, 1.0).estimate(points, noise=noise)
mean.gaussian_covariance(polytope, shape, 1.0, 1e-5)
mean.approximate_lower_bound(1.0, 100, 1.0, 1e-5, 3)
mean.concentrated_lower_bound(1.0, 100, 1.0)
mean.local_lower_bound(1.0, 100, 1.0)
mean.pure_lower_bound(1.0, 100, 1.0)
mean.distributional_approximate_lower_bound(1.0, 100, 1.0, 1e-5, 3)
mean.distributional_lower_bound(1.0, torch.eye(3).double(), 100, 2.0)
mean.moment_difference_norm(3, 2, 2.0)
mean.moment_norm(3, 2, 2.0)
mean.project_covariance(W)
mean.project_second_moment(W, 1.0)
mean.projection_bound(1.0, 3, 1.0)
"""

SKETCHING = """
sketching.ones(5)
sketching.osnap(5, 4, 2, generator=generator)
sketching.osnap_blocks(5, 4, 2, generator=generator)
sketching.balanced_osnap(5, 4, 2, generator=generator)
sketching.count_sketch(5, 4, generator=generator)
sketching.balanced_count_sketch(5, 4, generator=generator)
sketching.rademacher(5, 4, generator=generator)
sketching.Sketch(types[None], torch.ones(1, 5), 3)
secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5)
secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5).sample(rows, generator=generator, sample_shape=(2,))
secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5).messages(rows, 0, noise=noise)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5).messages(rows, noise=noise)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5).collect(rows, noise=noise)
regression.LocalRows(2, 1.0, 1.0, 1e-5)
regression.LocalRows(2, 1.0, 1.0, 1e-5).messages(rows, noise=noise)
regression.SecureHistogram(5, 3, 1.0)
regression.FrequencyMoments(5, 1.0, (1.0, 2.0), 1.0)
secure.SharedGaussian(5, 1.0, 1.0, 1e-5)
secure.SharedLaplace(5, 1.0, 1.0)
regression.SufficientStatistics(2, 1.0, 1.0, 1.0, 1e-5)
regression.AdaSSP(2, 1.0, 1.0, 1.0, 1e-5, 0.05)
sketching.AdaptiveCoalition(1)
sketching.StaticCoalition(1, 0.01)
secure.Ring(64, 20)
regression.second_moments(rows, labels)
regression.clipped_rows(rows, 1.0)
regression.choose_regression(regression.second_moments(rows, labels), 1.0, 1.0, 1.0, epsilon=1.0, delta=1e-5)
regression.choose_low_rank(regression.second_moments(rows), 1, 1.0, epsilon=1.0, delta=1e-5)
sketching.entry_variance(1.0, epsilon=1.0, delta=1e-5)
regression.gram_sensitivity(1.0, 2)
regression.cross_sensitivity(1.0, 1.0)
regression.joint_sensitivity(1.0, 1.0, 2)
regression.least_squares(regression.second_moments(rows, labels), 1.0)
regression.loss(regression.second_moments(rows, labels), points[0], 1.0)
regression.phi(regression.second_moments(rows, labels), points[0], 1.0)
sketching.GaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5)
sketching.GaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5, rows=False)
sketching.OneCopyGaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5)
sketching.LaplaceNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0)
sketching.PolyaNoise.calibrated(sketching.ones(5), 1, epsilon=1.0)
regression.mod_sulq(2, 1.0, 1.0, 1e-5)
regression.scaled_columns(rows)
regression.solve_ridge(torch.eye(2).double(), points[0], 1.0)
regression.spectrum_rows(5, 2, 1, generator=generator)
regression.regression_rows(5, 2, 0.5, generator=generator)
"""

SHUFFLE = """
shuffle.RandomizedResponseSum(5, 0.2)
shuffle.PoissonSum(5, 3.0)
shuffle.NegativeBinomialSum(5, 2.0, 0.5)
shuffle.CorrelatedSum(5, 0.5, 3.0, 0.5)
shuffle.PureSum(5, 1.0, 0.3, 0.1)
shuffle.CentralGaussianSum(5, 1.0)
shuffle.ExactSum(5)
shuffle.pure_sum(5, 1.0, 0.1)
shuffle.calibrate(shuffle.PoissonSum, 100, 1.0, 1e-5, 2, 0)
shuffle.delta_of(shuffle.PoissonSum(5, 3.0), 1.0, 2)
shuffle.epsilon_of(shuffle.PoissonSum(5, 3.0), 1e-3, 2)
shuffle.guarantee(shuffle.PoissonSum(5, 30.0), 1e-3, 2)
shuffle.rounded_delta_of(shuffle.PoissonSum(5, 30.0), 1.0, 2, 1.0)
shuffle.paper_composition(1.0, 1e-5, 10, 1e-5)
shuffle.paper_correlated(100, 1.0, 1e-5)
shuffle.paper_poisson(100, 1.0, 1e-5)
shuffle.paper_pure(100, 1.0)
shuffle.paper_randomized_response(10000, 1.0, 1e-5)
shuffle.paper_split(1.0, 1e-5, 10)
""" + "\n".join(
    f"shuffle.{made}.collect(bits, noise=noise)\nshuffle.{made}.variance(counts[:2])\n"
    f"shuffle.{made}.sample_sum(counts[:2], generator=generator, sample_shape=(2,))"
    for made in ("RandomizedResponseSum(5, 0.2)", "PoissonSum(5, 3.0)", "NegativeBinomialSum(5, 2.0, 0.5)")
)

DENSITY = "\n".join(
    f"density.{made}\n"
    f"density.{made}.draw(8, generator=generator)\n"
    f"density.{made}.kernel(points, points)\n"
    f"density.{made}.draw(8, generator=generator).left(points)\n"
    f"density.{made}.draw(8, generator=generator).right(points)"
    for made in (
        "Exponential(2, 1.0, 1.0)",
        "GaussianFourier(2, 1.0)",
        "GaussianOrthogonal(2, 1.0)",
        "GaussianSquareWave(2, 1.0)",
        "InnerProductRotated(2)",
        "InnerProductSigns(2)",
        "LaplacianBuckets(2, 1.0, 16)",
        "LaplacianSigns(2, 1.0)",
    )
)
DENSITY += """
density.ShuffledKDE(features, shuffle.PoissonSum(5, 50.0), 1e-5)
kde.collect(rows, noise=noise)
kde.sample(rows, generator=generator, sample_shape=(2,))
kde.predicted_mse(rows, points)
density.kernel_means(density.GaussianFourier(2, 1.0), rows, points)
density.expected_mse(density.GaussianFourier(2, 1.0), 8, shuffle.PoissonSum(5, 50.0), rows, points)
density.class_counts(types, 3)
density.calibrated_classes(features, shuffle.PoissonSum, counts, 1.0, 1e-5)
"""

TRAINING = """
training.Once()
training.Epochs(2)
training.Separated(2, 2)
training.sensitivity(W.tril().abs(), training.Separated(2, 2))
training.sensitivity(W.tril(), training.Epochs(2))
training.iterates(4, momentum=0.5)
training.standard_errors(W, torch.eye(3).double())
training.CorrelatedNoise(torch.eye(3).double(), 2, 1.0, noise=noise)
training.calibrated_noise(torch.eye(3).double(), 2, bound=1.0, epsilon=1.0, delta=1e-5, participation=once, noise=noise)
training.causal_strategy(workloads.prefix(3).dense(), torch.eye(3).double())
"""

SIMULATE = """
simulate.Trial(trial)
simulate.block_generator(1, {'a': 1}, 0)
"""

ALL = {room: globals()[room.upper()].split("\n") for room in ROOMS.split() if room.upper() in globals()}
ALL = {room: [line for line in lines if line] for room, lines in ALL.items()}
