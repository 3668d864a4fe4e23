"""One call for each public way in, small enough to be made hundreds of times. Names: see
:func:`names`.
"""

import contextlib
import importlib
import tempfile
from functools import cache, partial
from pathlib import Path
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
    collection = importlib.import_module("torchdp.collection").Collection
    return collection.of(protocol).add(name, tally)


def quick(queries):
    """Searches of two steps: 2^40 of them would only be waited for."""
    return SimpleNamespace(reports=partial(queries.LocalOracle.tuned, steps=2))


def squared(config):
    """A trial of a sweep."""
    made = importlib.import_module("torchdp.simulate").Trial
    facts = {"predicted_mse": float(config["a"])}

    def draw(generator, size):
        return config["a"] * torch.randn(size, generator=generator).square()

    return made(draw, facts)


class Fresh:
    """What a call uses up: files in a folder of their own, servers of a sum by two with shares of
    five clients.
    """

    # the last folder, until the next call's
    held = None

    def __init__(self, found):
        self.found = found
        self.session = bytes(16)
        self.keys = bytes(32)
        Fresh.held = tempfile.TemporaryDirectory()
        self.folder = Path(Fresh.held.name, "folder")
        self.path = str(Path(Fresh.held.name, "new"))
        self.store = str(Path(Fresh.held.name, "store"))
        self.kept = str(Path(Fresh.held.name, "kept"))

    def links(self, party):
        return self.found["secure"].Links(
            dict.fromkeys({"server 0", "server 1", "analyst"} - {party}, self.keys)
        )

    @property
    def journal(self):
        return self.found["collection"].Journal(self.kept, self.found["gathered"].protocol)

    @property
    def written(self):
        self.journal.merge(self.found["gathered"])
        return self.kept

    @property
    def sweep(self):
        return partial(
            self.found["simulate"].sweep,
            squared,
            trials=9,
            seed=1,
            block_size=9,
        )

    @property
    def rows(self):
        return self.sweep([{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")], store=self.store)

    @property
    def swept(self):
        return self.rows and self.store

    @property
    def frames(self):
        secure = self.found["secure"]
        protocol = self.found["sum_of_five"]
        shares = secure.share(
            protocol.randomize(self.found["rows"]).values, 2, noise=SeededNoise(1)
        )
        return secure.client_frames(
            protocol,
            self.session,
            shares,
            0,
            [self.keys] * 2,
        )

    @property
    def enrolled(self):
        made = self.server(0, heard=False)
        made.enrol(0, 5, self.keys)
        return made

    def server(self, number, heard=True):
        made = self.found["secure"].Server(
            self.found["sum_of_five"], self.session, number, self.links(f"server {number}")
        )
        if heard:
            made.enrol(0, 5, self.keys)
            made.receive(self.frames[number])
        return made

    @property
    def roll(self):
        return self.server(1).roll_call(0)

    @property
    def sums(self):
        pair = self.server(0), self.server(1)
        calls = [each.roll_call(1 - k) for k, each in enumerate(pair)]
        for each, call in zip(pair, calls[::-1], strict=True):
            each.agree(call)
        return [each.publish() for each in pair]

    def at(self, role):
        """A session's folder, as this role finds it when it is its turn; its keys lie in it."""
        secure = self.found["secure"]
        folder = self.folder
        folder.mkdir()
        secure.new_keys(folder.parent, "north", "first", "second", "analyst")
        key = {
            name: secure.KeyFile(folder.parent / f"{name}.key")
            for name in ("north", "first", "second", "analyst")
        }
        party = [secure.Party(name, key[name].public, 5 * (name == "north")) for name in key]
        session = secure.Session(
            self.found["sum_of_five"],
            party[1:3],
            party[:1],
            party[3],
        )
        secure.open_session(folder, session)
        for each in key.values():
            each.join(session, session.fingerprint)
        if role != "north":
            secure.submit(folder, key["north"], self.found["rows"])
        for name in (
            ("second", "first", "second") if role == "analyst" else ("second",) * (role == "first")
        ):
            with contextlib.suppress(TimeoutError):
                secure.serve(folder, key[name])
        return folder

    def key(self, name):
        """The key of a party of ``at``."""
        if not self.folder.exists():
            self.at(name)
        return self.found["secure"].KeyFile(self.folder.parent / f"{name}.key")


@cache
def kept():
    """The rooms, and valid arguments that nobody changes."""
    found = {room: importlib.import_module(f"torchdp.{room}") for room in ROOMS.split()}
    number = {"dtype": torch.float64}
    W = torch.tensor(
        [
            [1.0, 0.0, 0.5],
            [1.0, 1.0, -0.5],
            [0.0, 1.0, 1.0],
        ],
        **number,
    )
    points = torch.tensor(
        [
            [0.6, 0.0],
            [0.0, -0.5],
            [0.3, 0.3],
        ],
        **number,
    )
    polytope = found["domains"].Polytope(points)
    rows = torch.cat([points, torch.tensor([[0.1, 0.2], [0.2, 0.1]], **number)])
    gaussian = found["density"].GaussianFourier(2, 1.0)
    features = gaussian.draw(8, generator=torch.Generator().manual_seed(1))
    return found | {
        "torch": torch,
        "inf": float("inf"),
        "W": W,
        "eye": torch.eye(3, **number),
        "factors": found["factorization"].lipschitz_tree(W, 2.0),
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
        "response": partial(found["randomizers"].RandomizedResponse, 3),
        "trial": lambda generator, size: torch.rand(size, generator=generator, **number),
        "polytope": polytope,
        "shape": found["domains"].round_shape(polytope, 2.0),
        "features": features,
        "kde": found["density"].ShuffledKDE(features, found["shuffle"].PoissonSum(5, 50.0), 0.1),
        "once": found["training"].ONCE,
        "promise": found["privacy"].gaussian_guarantee(
            2.0, 1e-5, 1.0, found["privacy"].Model.CENTRAL, found["privacy"].Neighbours.REPLACE_ONE
        ),
        "sizes": torch.tensor([1, 1, 3]),
        "quick": quick(found["queries"]),
        "gathered": gathered(
            found["queries"].LocalFactorization.of(found["pairwise"].unequal(3), 1.0)
        ),
        "others": gathered(
            found["queries"].LocalFactorization.of(found["pairwise"].unequal(3), 1.0), "second"
        ),
        "protocol": importlib.import_module("torchdp.protocol"),
        "sketch": found["sketching"].balanced_osnap(
            12, 2, 1, generator=torch.Generator().manual_seed(1)
        ),
        "sketch_of_five": found["sketching"].balanced_osnap(
            5, 2, 2, generator=torch.Generator().manual_seed(1)
        ),
        "sum_of_five": found["secure"].SecureSketch(
            found["sketching"].ones(5),
            2,
            1.0,
            1.0,
            1e-5,
            coalition=found["sketching"].AdaptiveCoalition(0),
        ),
        "numbers": torch.full((12, 2), 0.2, **number),
        "words": torch.zeros(2, 3, dtype=torch.int64),
        "many": torch.zeros(1, 12, 2, dtype=torch.int64),
        "second": found["regression"].SecondMoments.of(points),
    }


def names():
    """What a recipe may call; randomness is new each time."""
    found = kept()
    new = {"generator": torch.Generator().manual_seed(1), "noise": SeededNoise(1)}
    return found | new | {"fresh": Fresh(found), "squared": squared}


def lines(text):
    """Recipes of a section of ``recipes.txt``."""
    kinds = [""]
    for line in text.splitlines():
        if line.startswith("each "):
            kinds = line.removeprefix("each ").split("; ")
        else:
            used = kinds if line[:1] == " " else [""]
            yield from (line.strip().replace("IT", kind) for kind in used)


SECTIONS = (Path(__file__).parent / "recipes.txt").read_text().split("\n# ")[1:]
ALL = {
    room: list(lines(text.strip())) for room, _, text in (each.partition("\n") for each in SECTIONS)
}
