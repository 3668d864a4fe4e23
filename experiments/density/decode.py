"""Words of highest private density in each class: what the released densities say about their
classes.

Paper: Wagner (2025), Tables 1 and 6 to 8 (class decoding), there on DBPedia, AG News and SST2 with
400,000 words.
Command:  python experiments/density/decode.py   (reads results/density/data/documentation.npz, made
by data.py)
Expected: for most packages three words of their subject, at epsilon = 1 as without privacy; the
paper's calibration of
    randomized response decodes at random.
Artifact: Wagner (2025) | Tables 1, 6 to 8
Status: on documentation; the paper's embeddings are not at hand
Time: a few minutes; --smoke, on random vectors, with protocols that are calibrated fast, in
seconds.
"""

from dataclasses import dataclass
from pathlib import Path

import data as embeddings
import numpy as np
import torch
from classification import protocol

from torchdp.density import InnerProductRotated, ShuffledClasses, class_counts, nearest_words
from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment

EPSILON = 1.0  # of the vector
LABEL_EPSILON = 5.0


@dataclass(frozen=True)
class Config:
    folder: Path = Path("results/density/data")  # of documentation.npz
    random: int = 0  # users with random vectors in the place of the file's
    protocols: tuple[str, ...] = ("no privacy", "Poisson", "randomized response, paper")


def measure(config, report):
    generator = keyed_generator(b"decode")
    words = embeddings.vocabulary()
    n = config.random
    if n:
        x = embeddings.unit(torch.randn(n, 32, generator=generator))
        vectors = embeddings.unit(torch.randn(len(words), 32, generator=generator))
        labels = torch.arange(n) % len(embeddings.PACKAGES)
    else:
        stored = embeddings.documentation(config.folder / "documentation.npz")
        x = stored.x
        labels = stored.labels
        with np.load(config.folder / "documentation.npz") as file:
            vectors = torch.as_tensor(file["words"])
    response = RandomizedResponse(len(embeddings.PACKAGES), LABEL_EPSILON)
    reported = response.randomize(labels, noise=SeededNoise.of(generator))
    features = InnerProductRotated(x.shape[1]).draw(1, generator=generator)
    report.say(f"epsilon = {EPSILON:g} for the vector, {LABEL_EPSILON:g} for the label")
    for name in config.protocols:
        counts = class_counts(reported, len(embeddings.PACKAGES)).tolist()
        kdes = tuple(protocol(name, features, n, EPSILON, 1e-5) for n in counts)
        classes = ShuffledClasses(kdes, response)
        released = classes.sample_estimate((x, reported), generator=generator)
        found = nearest_words(released, vectors, 3).tolist()
        for package, top in zip(embeddings.PACKAGES, found, strict=True):
            nearest = ", ".join(words[i] for i in top)
            report.row("words", protocol=name, package=package, words=nearest)


EXPERIMENT = Experiment(
    measure, Config(), Config(random=400, protocols=("no privacy", "3NB", "3NB, paper"))
)

if __name__ == "__main__":
    EXPERIMENT.main()
