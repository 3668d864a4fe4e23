"""Agnostic learning: concept classes, exact errors of the losses, the promised probability."""

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.queries import (
    PrivateLearner,
    conjunctions,
    parities,
    stumps,
    thresholds,
)
from torchdp.randomness import keyed_generator

CLASSES = [
    thresholds(9),
    parities(4, 2),
    conjunctions(4, 3),
    stumps([3, 5, 2]),
]


def data(concepts, n, seed=b"data"):
    generator = keyed_generator(seed)
    sizes = [table.shape[1] for table in concepts.tables]
    x = torch.stack([torch.randint(k, (n,), generator=generator) for k in sizes], 1)
    # concept 1, with a tenth of the labels wrong
    y = concepts.predict(x, 1)
    # a tenth of the labels
    wrong = torch.rand(n, dtype=torch.float64, generator=generator) < 0.1
    return x, torch.where(wrong, -y, y)


def labelled(x, y):
    return torch.cat([x, y.long()[:, None]], 1)


@pytest.mark.parametrize(
    "concepts",
    CLASSES,
    ids=["thresholds", "parities", "conjunctions", "stumps"],
)
def test_codes_and_readers_are_the_concepts(concepts):
    x, y = data(concepts, 200)
    every = concepts.predict(x, torch.arange(len(concepts)))
    assert every.abs().eq(1).all()
    torch.testing.assert_close(
        concepts.codes(x) @ concepts.readers.mT,
        every,
        rtol=0,
        atol=1e-9,
    )
    wrong = every != y[:, None]
    torch.testing.assert_close(concepts.losses(x, y), wrong.double().mean(0))
    assert concepts.codes(x).norm(dim=1).max() <= concepts.radius * (1 + 1e-12)


def test_names_say_what_the_concepts_do():
    c = thresholds(4)
    assert c.names[2] == "x >= 2"
    assert c.predict(torch.arange(4)[:, None], 2).tolist() == [-1, -1, 1, 1]
    assert c.names[4] == "x < 1"
    assert c.predict(torch.arange(4)[:, None], 4).tolist() == [1, -1, -1, -1]
    c = conjunctions(3, 2)
    i = c.names.index("bit 0 and bit 2")
    predicted = c.predict(torch.arange(8)[:, None], i)
    assert predicted.tolist() == [-1, -1, -1, -1, -1, 1, -1, 1]
    c = stumps([2, 3], ["a", "b"])
    i = c.names.index("b < 2")
    predicted = c.predict(torch.tensor([[0, 0], [1, 1], [0, 2]]), i)
    assert predicted.tolist() == [1, 1, -1]


def test_guarantee_learner_spends_epsilon_once_on_record_and_label():
    learner = PrivateLearner.calibrated(stumps([3, 4]), epsilon=0.8)
    assert learner.guarantee.epsilon == 0.8
    assert learner.guarantee.delta < 2**-128
    x = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    # every record with every label
    codes = learner.concepts.codes(x)
    codes = torch.cat([codes, -codes])
    assert codes.norm(dim=1).max() <= learner.client.radius


def test_guarantee_samples_learn_with_the_stated_probability():
    concepts = thresholds(8)
    learner = PrivateLearner.calibrated(concepts, epsilon=3.0)
    n = learner.samples(0.3, 0.1)
    good = 0
    noise = SeededNoise(2)
    for trial in range(40):
        x, y = data(concepts, n, b"sample %d" % trial)
        found = learner.best(learner.estimate(labelled(x, y), noise=noise))
        # losses on the law of the data
        agreement = concepts.tables[0] @ concepts.tables[0][1] / 8
        law = (1 - 0.8 * agreement) / 2
        near = abs(found.loss - law[found.concept]) <= 0.15
        good += bool(law[found.concept] <= law.min() + 0.3 and near)
    assert good >= 36
    assert 0.14 < found.half_width(0.1, population=True) <= 0.15 + 1e-9
    assert found.half_width(0.1) < found.half_width(0.1, population=True)
