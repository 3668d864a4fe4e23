"""Classes learned from shuffled densities, on data whose answer is known."""

import torch
from laws import generator, normal
from scipy import stats

from torchdp.density import (
    CentralKDE,
    Density,
    GaussianSquareWave,
    InnerProduct,
    ShuffledClasses,
    ShuffledKDE,
    class_counts,
    classify,
    nearest_centre,
    nearest_words,
)
from torchdp.noise import SeededNoise
from torchdp.shuffle import (
    CentralGaussianSum,
    PoissonSum,
    RandomizedResponseSum,
)

D = 8
CLASSES = 3
DELTA = 1e-5


def clusters(n, spread=0.15, seed=1):
    """Points near the first axes, their class the axis; norm at most 1."""
    labels = torch.arange(n) % CLASSES
    points = torch.eye(D, dtype=torch.float64)[labels]
    points = points + spread * normal(n, D, seed=seed)
    return points / points.norm(dim=1, keepdim=True), labels


def classes_of(kde, features, counts, law):
    return ShuffledClasses([kde(features, law(int(n)), DELTA) for n in counts])


def test_messages_and_aggregate_agree_for_every_class():
    x, labels = clusters(12)
    features = GaussianSquareWave(D).draw(2, generator=generator())
    learner = classes_of(
        ShuffledKDE,
        features,
        class_counts(labels, CLASSES),
        lambda n: RandomizedResponseSum(n, 0.2),
    )
    source = generator(4)
    noise = SeededNoise(4)
    collected = torch.stack([learner.estimate((x, labels), noise=noise).value for _ in range(150)])
    sampled = learner.sample_estimate((x, labels), generator=source, sample_shape=(1000,)).value
    for c in range(CLASSES):
        for instance in range(2):
            # in millionths: floats of two paths differ by rounding, and ks_2samp takes ties
            both = [means[:, c, instance].mul(1e6).round() for means in (collected, sampled)]
            assert stats.ks_2samp(both[0].numpy(), both[1].numpy()).pvalue > 1e-6


def test_nearest_centre_corrects_the_norms_for_the_noise():
    x, labels = clusters(60)
    # a small class: noisier, so its centre looks longer
    keep = (labels != 2) | (torch.arange(60) < 9)
    x = x[keep]
    labels = labels[keep]
    counts = class_counts(labels, CLASSES)
    features = InnerProduct(D).draw(1, generator=generator())
    learner = classes_of(
        CentralKDE,
        features,
        counts,
        lambda n: CentralGaussianSum(n, 1.0),
    )
    queries, truth = clusters(90, spread=0.05, seed=9)
    densities = learner.sample_estimate(
        (x, labels),
        generator=generator(1),
        sample_shape=(2000,),
    )
    # linear functions are known by their values here
    axes = torch.eye(D, dtype=torch.float64)
    values = densities.evaluate(axes)
    squares = values.square().sum(-1).mean(0)
    errors = densities.standard_error_at(axes)
    noise = errors.square().sum(-1)[0]
    members = [x[labels == c] for c in range(CLASSES)]
    centres = torch.stack([each.mean(0) for each in members])
    wanted = centres.square().sum(1)
    assert ((squares - noise - wanted).abs() < 1 / counts + 0.05).all()
    bias = (squares - noise - wanted)[2].abs()
    assert float(squares[2] - wanted[2]) > 5 * float(bias)
    many, groups = clusters(3000)
    sizes = class_counts(groups, CLASSES)
    exact = classes_of(
        CentralKDE,
        features,
        sizes,
        lambda n: CentralGaussianSum(n, 0.0),
    ).estimate((many, groups))
    assert (nearest_centre(exact, queries) == truth).double().mean() > 0.95
    assert nearest_centre(densities, queries).shape == (2000, 90)


def test_the_vocabulary_word_of_a_class_is_the_one_nearest_to_its_members():
    x, labels = clusters(3000)
    features = GaussianSquareWave(D).draw(300, generator=generator())
    learner = ShuffledClasses.calibrated(
        features, PoissonSum, class_counts(labels, CLASSES), 4.0, DELTA
    )
    densities = learner.sample_estimate((x, labels), generator=generator(1))
    axes = torch.eye(D, dtype=torch.float64)
    words = torch.cat([axes, -axes])
    best = nearest_words(densities, words, 2)
    assert best.shape == (CLASSES, 2)
    assert best[:, 0].tolist() == [0, 1, 2]


def test_guarantee_what_is_learned_is_read_from_the_release_alone(tmp_path):
    x, labels = clusters(300)
    features = InnerProduct(D).draw(2, generator=generator())
    learner = ShuffledClasses.calibrated(
        features, PoissonSum, class_counts(labels, CLASSES), 4.0, DELTA
    )
    densities = learner.sample_estimate((x, labels), generator=generator(1))
    densities.save(tmp_path / "classes.pt")
    queries, _ = clusters(40, seed=9)
    answers = [
        (
            classify(d, queries),
            nearest_centre(d, queries),
            nearest_words(d, queries, 3),
        )
        for d in (densities,)
    ]
    x.zero_(), labels.zero_()
    del densities
    loaded = Density.load(tmp_path / "classes.pt")
    again = (
        classify(loaded, queries),
        nearest_centre(loaded, queries),
        nearest_words(loaded, queries, 3),
    )
    assert all(torch.equal(a, b) for a, b in zip(answers[0], again, strict=True))
    assert loaded.guarantee == learner.guarantee
    assert loaded.guarantee.epsilon == 4.0
