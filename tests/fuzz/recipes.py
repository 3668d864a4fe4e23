"""One call for each public way in, small enough to be made hundreds of times. Names: see :func:`names`."""

import importlib
from functools import cache, partial
from types import SimpleNamespace

import torch

from torchdp.noise import SeededNoise

ROOMS = (
    "privacy workloads factorization randomizers queries pairwise collection domains mean "
    "sketching secure regression shuffle density training simulate"
)


def gathered(protocol, name="first"):
    """A collection of five users."""
    tally = protocol.collect(torch.tensor([0, 1, 2, 2, 1]), noise=SeededNoise(1))
    return importlib.import_module("torchdp.collection").Collection.of(protocol).add(name, tally)


def quick(pairwise):
    """Searches of two steps: 2^40 of them would only be waited for."""
    searches = {"low_rank": pairwise.low_rank, "fewer_dimensions": pairwise.fewer_dimensions}
    searches["reports"] = pairwise.StrategyReports.tuned
    return SimpleNamespace(**{name: partial(search, steps=2) for name, search in searches.items()})


@cache
def kept():
    """The rooms, and valid arguments that nobody changes."""
    found = {room: importlib.import_module(f"torchdp.{room}") for room in ROOMS.split()}
    number = {"dtype": torch.float64}
    W = torch.tensor([[1.0, 0.0, 0.5], [1.0, 1.0, -0.5], [0.0, 1.0, 1.0]], **number)
    points = torch.tensor([[0.6, 0.0], [0.0, -0.5], [0.3, 0.3]], **number)
    polytope = found["domains"].Polytope(points)
    rows = torch.cat([points, torch.tensor([[0.1, 0.2], [0.2, 0.1]], **number)])
    features = found["density"].GaussianFourier(2, 1.0).draw(8, generator=torch.Generator().manual_seed(1))
    return found | {
        "torch": torch,
        "inf": float("inf"),
        "W": W,
        "eye": torch.eye(3, **number),
        "factors": found["factorization"].identity_strategy(W, 2.0),
        "priced": importlib.import_module("torchdp.factorization.approximate").priced,
        "layer": importlib.import_module("torchdp.factorization.layer"),
        "types": torch.tensor([0, 1, 2, 2, 1]),
        "counts": torch.tensor([5, 3, 2]),
        "prior": torch.tensor([0.5, 0.3, 0.2], **number),
        "points": points,
        "rows": rows,
        "crowd": importlib.import_module("torchdp.protocol").Crowd.of(rows),
        "labels": torch.tensor([0.5, -0.5, 0.1, 0.2, 0.3], **number),
        "labelled": torch.tensor([[0, 1], [1, -1], [2, 1], [2, 1], [1, -1]]),
        "signs": torch.tensor([1, -1, 1, 1, -1]),
        "bits": torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]], dtype=torch.bool),
        "kernel": lambda x, y: (x[..., 0] - y[..., 0]).abs(),
        "trial": lambda generator, size: torch.rand(size, generator=generator, **number),
        "polytope": polytope,
        "shape": found["domains"].round_shape(polytope, 2.0),
        "features": features,
        "kde": found["density"].ShuffledKDE(features, found["shuffle"].PoissonSum(5, 50.0), 0.1),
        "once": found["training"].Once(),
        "promise": found["privacy"].gaussian_guarantee(
            2.0, 1e-5, 1.0, found["privacy"].Model.CENTRAL, found["privacy"].Neighbours.REPLACE_ONE
        ),
        "sizes": torch.tensor([1, 1, 3]),
        "quick": quick(found["pairwise"]),
        "gathered": gathered(found["pairwise"].OneMessage(found["pairwise"].unequal(3), 1.0)),
        "others": gathered(found["pairwise"].OneMessage(found["pairwise"].unequal(3), 1.0), "second"),
        "protocol": importlib.import_module("torchdp.protocol"),
        "sketch": found["sketching"].balanced_osnap(12, 2, 1, generator=torch.Generator().manual_seed(1)),
        "static": found["sketching"].StaticCoalition(1),
        "sum_of_five": found["secure"].SecureSketch(found["sketching"].ones(5), 2, 1.0, 1.0, 1e-5),
        "numbers": torch.full((12, 2), 0.2, **number),
        "words": torch.zeros(2, 3, dtype=torch.int64),
        "many": torch.zeros(1, 12, 2, dtype=torch.int64),
        "second": found["regression"].SecondMoments.of(points),
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
privacy.compose([promise, promise], 1e-5)
privacy.Budget(promise)
privacy.Budget(promise).spend(promise)
promise.event()
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
    f"randomizers.{name}(3, 1.0).randomize(types, noise=noise)\n"
    f"randomizers.{name}(3, 1.0).collect(types, noise=noise)\n"
    f"randomizers.{name}(3, 1.0).sample_tally(counts, generator=generator, sample_shape=(2,))\n"
    f"randomizers.{name}(3, 1.0).worst_mse(100)\n"
    f"randomizers.{name}(3, 1.0).workload_variance(W)"
    for name in (
        "RandomizedResponse",
        "HadamardResponse",
        "OptimizedUnaryEncoding",
        "SymmetricUnaryEncoding",
        "SubsetSelection",
    )
) + "\n".join(
    f"\nrandomizers.{name}(2, 1.0, 1.0{more})\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).randomize(points, noise=noise)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).collect(points, noise=noise)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).tally({messages})\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).worst_mse(100)\n"
    f"randomizers.{name}(2, 1.0, 1.0{more}).squared_error(0.5)"
    for name, more, messages in (
        ("PrivUnit", "", "0 * points"),
        ("PrivUnitG", "", "0 * points"),
        ("ProjUnit", ", k=2", "randomizers.ProjUnit(2, 1.0, 1.0, k=2).randomize(points, noise=noise)"),
        ("DuchiJordanWainwright", "", "points"),
        ("PointRelease", "", "points"),
        ("GaussianVector", ", delta=1e-3", "0 * points"),
    )
)
RANDOMIZERS += """
randomizers.StrategyMatrix(torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]).double(), prior)
"""

PAIRWISE = """
pairwise.absolute_difference(4, spacing=1.0)
pairwise.gini(3, low=0.5, high=2.0)
pairwise.gamma(2, 3)
pairwise.concordance(2, 2)
pairwise.ratio(pairwise.unequal(3), pairwise.absolute_difference(3), weight=0.5)
pairwise.unequal(4)
pairwise.kendall(2, 3, tol=0.1)
pairwise.auc(3, label_weight=0.1, tol=0.1)
pairwise.auc_of_sizes(3, 10, 20, tol=0.1)
pairwise.from_kernel(W + W.T, tol=0.1, pairs=pairwise.Pairs.ALL, name='W')
pairwise.from_factors(W, W.T, pairs=pairwise.Pairs.ALL, name='W')
pairwise.Form(prior, 0.5)
pairwise.PairwiseStatistic('name', points, pairwise.Form(torch.ones(2).double()), limits=(0.0, 1.0))
pairwise.unequal(3).exact(counts)
pairwise.histograms(pairwise.unequal(3))
quick.low_rank(pairwise.unequal(3), 1, 100, 1.0, prior=prior, learning_rate=0.02)
quick.fewer_dimensions(pairwise.unequal(3), 100, 1.0, prior=prior)
pairwise.choose(pairwise.unequal(3), 100, 1.0, prior=prior, rounds=1, search=False)
pairwise.lipschitz(torch.minimum, 1.0, 100, 1.0, largest=4)
pairwise.lipschitz(torch.minimum, 1.0, 100, 1.0, largest=4).types(prior)
pairwise.TwoRound.tuned(pairwise.unequal(3), 100, 1.0)
pairwise.TwoRound.tuned(pairwise.unequal(3), 100, 1.0, prior=prior)
pairwise.ThreeRound.tuned(pairwise.unequal(3), 100, 1.0)
pairwise.ProjectedTwoRound.tuned(pairwise.unequal(3), 100, 1.0)
quick.reports(pairwise.unequal(2), 100, 1.0, generator=generator)
pairwise.ShuffledForm.calibrated(pairwise.unequal(3), 5, 1.0, 1e-2)
pairwise.ThreeRound.paper(pairwise.unequal(3), 1.0)
pairwise.rounds.project(points, prior[:2], tol=1e-3, most_steps=100)
pairwise.of_population(gathered)
collection.Collection.of(gathered.protocol).add('name', gathered.tally)
collection.Collection.of(gathered.protocol).merge(gathered)
collection.difference(gathered.estimate(), gathered.estimate())
collection.compare(others, gathered)
""" + "\n".join(
    f"pairwise.{made}\n"
    f"pairwise.{made}.estimate(types, noise=noise)\n"
    f"pairwise.{made}.sample_estimate(sizes, generator=generator, sample_shape=(2,))\n"
    f"pairwise.{made}.predicted_mse(sizes)\n"
    f"pairwise.{made}.worst_mse(5)"
    for made in (
        "TwoMessage(pairwise.unequal(3), 1.0)",
        "OneMessage(pairwise.unequal(3), 1.0, kind=randomizers.PrivUnit)",
        "OneMessagePairs(pairwise.unequal(3), 1.0)",
        "SubsetPairs(pairwise.unequal(3), 1.0)",
        "RandomizedResponsePlugIn(pairwise.unequal(3), 1.0)",
        "StrategyReports(pairwise.unequal(3), 1.2, randomizers.StrategyMatrix((torch.ones(3, 3) + torch.eye(3)) / 4))",
        "TwoRound(pairwise.unequal(3), 1.0, 0.5, 0.9, clip=2.0)",
        "ThreeRound(pairwise.unequal(3), 4.0, (1.0, 1.0, 1.0, 1.0))",
        "ProjectedTwoRound(pairwise.unequal(3), 3.0, (1.0, 1.0, 1.0))",
        "ShuffledForm(pairwise.unequal(3), 1.0, 5, 200.0, 1e-2)",
        "rounds.Round(points, (1.0,))",
    )
)

QUERIES = """
queries.choose_central(W, 100, 1.0, 1e-5, prior=prior, tol=1e-2)
queries.conjunctions(3, 2)
queries.parities(3, 2)
queries.thresholds(3)
queries.stumps([2, 3])
queries.consistent(W, prior, tol=1e-6)
queries.FactoredQueries.of(W, factorization.identity_strategy(W, 2.0))
queries.FactoredQueries.identity(W)
queries.FactoredQueries.plain(W)
queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W), epsilon=1.0)
queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W), epsilon=1.0).estimate(types, noise=noise)
queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W), epsilon=1.0).half_width(100, 0.05)
queries.CentralFactorization(queries.FactoredQueries.plain(W), 1.0, 1e-5)
queries.CentralFactorization(queries.FactoredQueries.plain(W), 1.0, 1e-5).estimate(types, noise=noise)
queries.CentralFactorization(queries.FactoredQueries.plain(W), 1.0, 1e-5).predicted_mse(counts)
queries.CentralFactorization(queries.FactoredQueries.plain(W), 1.0, 1e-5).worst_mse(100)
queries.EnergyDistance(3, spacing=0.5)
queries.MeanDiscrepancy(3, width=0.5)
queries.Spearman(2, 3)
queries.KendallB(2, 3)
queries.Correlation(2, 3)
queries.LocalFunction(queries.EnergyDistance(2), randomizers.RandomizedResponse(4, 1.0)).estimate(types, noise=noise)
queries.choose_function(queries.EnergyDistance(2), 100, 1.0, prior=torch.ones(4), search=False)
queries.IntegerSums(2, 3.0, 4.0, 1e-5)
queries.IntegerSums.calibrated(2, 3.0, epsilon=1.0, delta=1e-5)
queries.IntegerSums.calibrated(2, 3.0, epsilon=1.0, delta=1e-5).estimate(labelled, noise=noise)
queries.IntegerSums.calibrated(2, 3.0, epsilon=1.0, delta=1e-5).worst_mse(100)
queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0))
queries.LocalOracle(W, randomizers.RandomizedResponse(3, 1.0)).estimate(types, noise=noise)
queries.LocalFactorization(queries.FactoredQueries.plain(W), randomizers.PrivUnit(3, 1.0, 9.0))
queries.PrivateLearner.calibrated(queries.thresholds(3), epsilon=1.0)
queries.PrivateLearner.calibrated(queries.thresholds(3), epsilon=1.0).estimate(labelled, noise=noise)
queries.thresholds(3).losses(types[:, None], signs)
queries.FactoredQueries(W, W, torch.eye(3).double(), torch.zeros(3).double())
"""

FACTORIZATION = """
factorization.factorize(W, 2.0, tol=0.1)
factorization.factorize(W, shift=True, tol=0.1, error_weights=prior, max_iterations=9)
factorization.signature_form(W + W.T, tol=0.1)
factorization.factorize_product(workloads.kendall(2, 3), 2.0, tol=0.1)
factorization.factorize_blocks([W, W], 2.0, tol=0.1)
factorization.factorize_epochs(W, 2, 2.0, tol=0.1)
factorization.free_constant(W, tol=0.1, most=3)
factorization.approximate(W, 0.1, tol=0.1, max_iterations=5)
priced(W, 1.0, tol=0.1, max_iterations=5)
factorization.zeta(W, 9, 1.0, tol=0.1, max_iterations=5)
factorization.least_error(W, 0.1, tol=0.1, max_iterations=5)
factorization.gamma(W, 2.0, tol=0.1)
factorization.gamma2(W, tol=0.1)
factorization.gamma_F(W, tol=0.1)
factorization.gamma2_dual(W, tol=0.1, max_iterations=5)
factorization.norm.witness(W, prior, prior, shift=True)
factorization.certify(W, W, eye, prior, prior, p=2.0, shift=prior, error_weights=prior)
factorization.dual.certify_dual(W, W, W, prior, prior)
factorization.certificates.epochs_certificate.certify_epochs(W, W, eye, prior, eye, 2, p=2.0)
factorization.certificates.approximate_certificate.certify_approximate(W, 0.1, W, eye, W, prior, prior)
factorization.certificates.approximate_certificate.certify_zeta(W, 0.1, W, eye, W, prior, prior)
factorization.gradient(W, 2.0, steps=2, learning_rate=0.1, rank=3)
factorization.low_rank(W, 2, 0.1, steps=2, learning_rate=0.1)
factorization.Relaxation(W, alpha=0.1)
factorization.relaxation.LowRankRelaxation(W, 2)
factorization.SignatureRelaxation(W + W.T, 2)
factorization.truncate(factors, 2)
factorization.johnson_lindenstrauss(factors, 2, generator=generator)
factorization.jl_rank(3, 3, 0.5, failure=0.5)
factorization.rank.measure(W, W, eye)
factorization.hard_instance(W, W, prior)
factorization.hard_instance(W, W, prior).samples(0.1, 1.0)
factorization.hard_instance(W, W, prior).distributions(0.1)
factorization.hard_instance(W, W, prior).samples_absolute(0.1, 1.0)
factorization.sample_upper_bound(1.0, 1.0, 0.1, spread=1.0, bias=0.01)
factorization.additive.least_noise_variance(1.0, 1e-5)
factorization.additive_noise_bound(1.0, 1.0, 1e-5)
factorization.best_decoder(W, eye, 2.0)
factorization.identity_strategy(W, 2.0)
factorization.structure.constructive.workload_strategy(W, 2.0)
factorization.structure.constructive.hadamard_strategy(W, 2.0)
factorization.lipschitz_tree(W, 2.0, decay=0.5)
factorization.binary_tree(4, 2.0)
factorization.square_root(4, 2.0)
factorization.normalised_square_root(4, 2.0)
factorization.group_algebra(4, 2.0)
factorization.structure.closed_forms.group_invariant(eye, 2.0)
factorization.structure.closed_forms.circulant(prior, 2.0)
factorization.structure.closed_forms.skew_circulant(prior, 2.0)
factorization.structure.closed_forms.gamma_circulant(prior, 2.0)
factorization.structure.closed_forms.gamma_skew_circulant(prior, 2.0)
factorization.gamma_sign(4, 2.0)
factorization.gamma_sign_triangular(4, 2.0)
factorization.structure.closed_forms.gamma_block_diagonal(prior, 2.0)
factorization.structure.closed_forms.gamma_product_domain(prior, 2.0)
factorization.gamma_box(-prior, prior, 2.0)
factorization.structure.closed_forms.box_axes(-prior, prior, 2.0)
factorization.gamma_ellipsoid(W, 2.0)
layer.gram_layer(W)
factorization.reference(W, 2.0, True)
factorization.structure.product.ProductFactorization((factors,))
factorization.structure.product.ProductFactorization((factors,)).columns(types)
factorization.structure.product.ProductFactorization((factors,)).encode(prior)
factorization.structure.product.ProductFactorization((factors,)).decode(prior)
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
mean.GaussianMean.calibrated(polytope, domains.noise_shape(polytope, 2.0), epsilon=1.0, delta=1e-5)
mean.GaussianMean(polytope, shape, 1.0, 1e-5).estimate(points, noise=noise)
mean.GaussianMean.tuned(polytope, 2.0, epsilon=1.0, delta=1e-5)
mean.PureMean.tuned(polytope, epsilon=1.0)
mean.PureMean(polytope, shape, 1.0, (mean.Block(2, 2.0, 1.0),))
mean.AdaptiveMean(domains.Box(-prior, prior), 1.0, 1e-5)
mean.LocalMean.tuned(polytope, 2.0, epsilon=1.0)
mean.GaussianMean.calibrated(polytope, shape, rho=1.0, delta=1e-5)
mean.LocalCovariance.calibrated(domains.Box(-prior, prior), epsilon=1.0)
mean.LocalMean.calibrated(polytope, shape, epsilon=1.0)
mean.LocalMean.calibrated(polytope, shape, epsilon=1.0).estimate(points, noise=noise)
mean.GaussianCovariance.calibrated(polytope, shape, epsilon=1.0, delta=1e-5)
mean.GaussianCovariance(polytope, shape, 1.0, 1e-5).estimate(points, noise=noise)
mean.approximate_lower_bound(1.0, 100, 1.0, 1e-5, 3)
mean.concentrated_lower_bound(1.0, 100, 1.0)
mean.local_lower_bound(1.0, 100, 1.0)
mean.pure_lower_bound(1.0, 100, 1.0)
mean.distributional_lower_bound(1.0, torch.eye(3).double(), 100, 2.0)
mean.moment_norm(3, 2, 2.0)
mean.project_covariance(W)
mean.project_second_moment(W, 1.0)
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
secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5).randomize(rows, first=0, noise=noise)
secure.SecureSketch(sketching.ones(5), 2, 1.0, 1.0, 1e-5).collect(rows, noise=noise)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5).randomize(rows, noise=noise)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5).collect(rows, noise=noise)
regression.LocalRows(2, 1.0, 1.0, 1e-5)
regression.LocalRows(2, 1.0, 1.0, 1e-5).randomize(rows, noise=noise)
regression.SecureHistogram(5, 3, 1.0)
regression.FrequencyMoments(5, 1.0, (1.0, 2.0), 1.0)
secure.shared_noise.SharedGaussian(5, 1.0, 1.0, 1e-5)
secure.shared_noise.SharedLaplace(5, 1.0, 1.0)
regression.SufficientStatistics(2, 1.0, 1.0, 1.0, 1e-5)
regression.AdaSSP(2, 1.0, 1.0, 1.0, 1e-5, 0.05)
sketching.AdaptiveCoalition(1)
sketching.StaticCoalition(1, 0.01)
secure.ring.Ring(64, 20)
regression.SecondMoments.of(rows, labels)
regression.clipped_rows(rows, 1.0)
regression.choose_regression(second, 1.0, 1.0, 1.0, epsilon=1.0, delta=1e-5, generator=generator)
regression.choose_low_rank(regression.SecondMoments.of(rows), 1, 1.0, epsilon=1.0, delta=1e-5, generator=generator)
sketching.entry_variance(1.0, epsilon=1.0, delta=1e-5)
regression.sensitivity.gram_sensitivity(1.0, 2)
regression.sensitivity.cross_sensitivity(1.0, 1.0)
regression.sensitivity.joint_sensitivity(1.0, 1.0, 2)
regression.least_squares(regression.SecondMoments.of(rows, labels), 1.0)
regression.loss(regression.SecondMoments.of(rows, labels), points[0], 1.0)
regression.phi(regression.SecondMoments.of(rows, labels), points[0], 1.0)
sketching.GaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5)
sketching.GaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5, rows=False)
sketching.OneCopyGaussianNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0, delta=1e-5)
sketching.LaplaceNoise.calibrated(sketching.ones(5), 1.0, epsilon=1.0)
sketching.PolyaNoise.calibrated(sketching.ones(5), 1, epsilon=1.0)
regression.ModSulq.calibrated(2, 1.0, 1.0, 1e-5)
regression.solve_ridge(torch.eye(2).double(), points[0], 1.0)
sketching.AdaptiveCoalition(1).honest(sketch, 1e-6)
static.honest(sketch, 1e-3)
static.leverages(sketch, 1e-3)
static.losses(sketch, torch.ones(2), 1e-3)
static.one_copy_losses(sketch, 1e-3)
sketching.GaussianNoise.calibrated(sketch, 1.0, epsilon=1.0, delta=1e-5, coalition=static)
sketching.LaplaceNoise.calibrated(sketch, 1.0, epsilon=1.0, delta=1e-3, coalition=sketching.AdaptiveCoalition(1))
sketching.GaussianNoise(9.0)
sketching.GaussianNoise(9.0).guarantee(sketch, 1.0, delta=1e-3, coalition=static)
sketching.GaussianNoise(9.0).variance(sketch)
sketching.GaussianNoise(9.0).collect(sketch, numbers, noise=noise)
sketching.LaplaceNoise(9.0, torch.ones(2))
sketching.LaplaceNoise(9.0, torch.ones(2)).guarantee(sketch, 1.0)
sketch.part(types)
sketch.apply(numbers)
sum_of_five.tally(sum_of_five.randomize(rows))
sum_of_five.decode(sum_of_five.encode(sum_of_five.randomize(rows)))
sum_of_five.session(bytes(32))
secure.share(words, 2, noise=noise)
secure.reconstruct(words)
secure.rounding.grid_sensitivity(secure.ring.Ring(64, 3), 1.0, 3)
secure.rounding.grid_sigma(torch.ones(2), 1, 3, secure.ring.Ring(64, 3), 1.0, 1.0)
secure.Links({"analyst": bytes(32)})
secure.Links.derived(bytes(32), "server 0", 2)
secure.Server(sum_of_five, bytes(16), 0, secure.Links.derived(bytes(32), "server 0", 2))
secure.client_frames(sum_of_five, bytes(16), torch.zeros(2, 1, 1, 2, dtype=torch.int64), 0, [bytes(32)] * 2)
regression.GramRelease(5, 2, 1.0, 1.0, 1e-5).guarantee_of(5)
regression.GramRelease(5, 1, 1.0, 1.0, 1e-5, 1.0).predicted_mse(second)
regression.LocalRows(2, 1.0, 1.0, 1e-5).tally(rows)
regression.SecureHistogram(5, 3, 1.0).randomize(types)
regression.SecureHistogram(5, 3, 1.0).predicted_mse(torch.ones(3))
regression.predicted_phi(second, 1.0, 0.1, 0.1)
regression.debiased(protocol.Estimate(rows, rows.abs() * 0, 5))
sketching.transform.add_rows(torch.zeros(2, 2, dtype=torch.int64), sketch.rows, many)
"""

SHUFFLE = """
shuffle.RandomizedResponseSum(5, 0.2)
shuffle.PoissonSum(5, 3.0)
shuffle.NegativeBinomialSum(5, 2.0, 0.5)
shuffle.CorrelatedSum(5, 0.5, 3.0, 0.5)
shuffle.PureSum(5, 1.0, 0.3, 0.1)
shuffle.CentralGaussianSum(5, 1.0)
shuffle.ExactSum(5)
shuffle.PureSum.tuned(5, 1.0, 0.1)
shuffle.PoissonSum.calibrated(100, 1.0, 1e-5, 2, 0)
shuffle.PoissonSum.calibrated(100, 1.0, 1e-5, 2, 0, change=1.0, flips=2)
shuffle.delta_of(shuffle.PoissonSum(5, 3.0), 1.0, 2)
shuffle.epsilon_of(shuffle.PoissonSum(5, 3.0), 1e-3, 2)
shuffle.delta_of(shuffle.PoissonSum(5, 30.0), 1.0, 2, change=1.0, flips=2)
shuffle.BitSums(shuffle.PoissonSum(5, 30.0), 2, 1e-3)
shuffle.BitSums.calibrated(shuffle.PoissonSum, 100, 1.0, 1e-5, 2, 0)
shuffle.CuratorSums(shuffle.CentralGaussianSum(5, 1.0), 2, 1e-3)
shuffle.RoundedGaussianSum(5, 1.0)
shuffle.CuratorSums(shuffle.RoundedGaussianSum(5, 1.0), 2, 1e-3).estimate(bits, noise=noise)
shuffle.paper.composition(1.0, 1e-5, 10, 1e-5)
shuffle.paper.correlated(100, 1.0, 1e-5)
shuffle.paper.poisson(100, 1.0, 1e-5)
shuffle.paper.pure(100, 1.0)
shuffle.paper.randomized_response(10000, 1.0, 1e-5)
shuffle.paper.split(1.0, 1e-5, 10)
""" + "\n".join(
    f"{made}.collect(bits, noise=noise)\n"
    f"{made}.sample_estimate(counts[:2], generator=generator, sample_shape=(2,))"
    for made in (
        "shuffle.BitSums(shuffle.RandomizedResponseSum(5, 0.2), 2, 1e-3)",
        "shuffle.BitSums(shuffle.PoissonSum(5, 3.0), 2, 1e-3)",
        "shuffle.CuratorSums(shuffle.CentralGaussianSum(5, 1.0), 2, 1e-3)",
    )
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
        "LaplacianSigns(2, 1.0)",
    )
)
DENSITY += """
density.ShuffledKDE(features, shuffle.PoissonSum(5, 50.0), 1e-5)
density.CentralKDE.calibrated(features, 5, 1.0, 1e-5)
kde.collect(rows, noise=noise)
kde.sample_estimate(crowd, generator=generator, sample_shape=(2,))
kde.density_mse(crowd, points)
density.kernel_means(density.GaussianFourier(2, 1.0), rows, points)
density.class_counts(types, 3)
density.ShuffledClasses.calibrated(features, shuffle.PoissonSum, counts, 1.0, 1e-5)
"""

TRAINING = """
training.Once()
training.Epochs(2)
training.Separated(2, 2)
training.sensitivity(W.tril().abs(), training.Separated(2, 2))
training.sensitivity(W.tril(), training.Epochs(2))
training.Iterates(4, momentum=0.5)
training.Iterates(2, learning_rates=[1.0, 2.0])
training.CorrelatedNoise(torch.eye(3).double(), 2, 1.0).guarantee(1.0, 1e-5, once)
training.standard_errors(W, torch.eye(3).double())
training.standard_errors(training.Iterates(3), torch.eye(3).double())
factorization.BandedStrategy(torch.ones(3, 2).double(), 3)
training.CorrelatedNoise(torch.eye(3).double(), 2, 1.0, noise=noise)
training.calibrated_noise(torch.eye(3).double(), 2, bound=1.0, epsilon=1.0, delta=1e-5, participation=once, noise=noise)
training.causal_strategy(workloads.prefix(3).dense(), torch.eye(3).double())
"""

SIMULATE = """
simulate.Trial(trial)
"""

ALL = {room: globals()[room.upper()].split("\n") for room in ROOMS.split() if room.upper() in globals()}
ALL = {room: [line for line in lines if line] for room, lines in ALL.items()}
