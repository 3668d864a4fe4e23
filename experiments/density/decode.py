"""Words of highest private density in each class: what the released densities say about their classes.

Paper: Wagner (2025), Tables 1 and 6 to 8 (class decoding), there on DBPedia, AG News and SST2 with 400,000 words.
Command:  python experiments/density/decode.py   (reads results/density/documentation.npz, made by data.py)
Expected: for most packages three words of their subject, at epsilon = 1 as without privacy; the paper's calibration of
    randomized response decodes at random.
Time: a minute; --smoke, on random vectors, in seconds.
"""

import argparse
from pathlib import Path

import data as embeddings
import numpy as np
import torch
from classification import protocol

from torchdp.density import InnerProductRotated, ShuffledClasses, class_counts, decode
from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator

EPSILON, LABEL_EPSILON = 1.0, 5.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", type=Path, default=Path("results/density"), help="of documentation.npz")
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    generator, words = keyed_generator(b"decode"), embeddings.vocabulary()
    if options.smoke:
        x = embeddings.unit(torch.randn(4000, 32, generator=generator))
        vectors, labels = embeddings.unit(torch.randn(len(words), 32, generator=generator)), torch.arange(4000) % 8
    else:
        stored = embeddings.documentation(options.folder / "documentation.npz")
        x, labels = stored.x, stored.labels
        with np.load(options.folder / "documentation.npz") as file:
            vectors = torch.from_numpy(file["words"])
    response = RandomizedResponse(len(embeddings.PACKAGES), LABEL_EPSILON)
    reported = response.sample(labels, noise=SeededNoise.of(generator))
    features = InnerProductRotated(x.shape[1]).draw(1, generator=generator)
    for name in ("no privacy", "Poisson", "randomized response, paper"):
        counts = class_counts(reported, len(embeddings.PACKAGES)).tolist()
        kdes = tuple(protocol(name, features, n, EPSILON, 1e-5) for n in counts)
        classes = ShuffledClasses(kdes, response)
        found = decode(classes.sample(x, reported, generator=generator), vectors, 3)
        print(f"{name}, epsilon = {EPSILON:g} for the vector, {LABEL_EPSILON:g} for the label")
        for package, top in zip(embeddings.PACKAGES, found.tolist(), strict=True):
            print(f"    {package:<12}" + ", ".join(words[i] for i in top))


if __name__ == "__main__":
    main()
