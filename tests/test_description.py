"""What files may make: classes that torchdp defines, where they belong, and no others, for every
reader.
"""

import contextlib
import hashlib
import json
import sqlite3
import subprocess
import sys
import zlib
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from torchdp import secure, training
from torchdp.collection import Journal
from torchdp.density import CentralKDE, Density, GaussianFourier
from torchdp.description import described, made
from torchdp.privacy import Guarantee
from torchdp.queries import LocalOracle
from torchdp.randomizers import RandomizedResponse, StrategyMatrix
from torchdp.secure import SecureSketch
from torchdp.sketching import AdaptiveCoalition, ones

MADE = []


@dataclass(frozen=True)
class Planted:
    """A class of somebody else, which takes down that it was made."""

    value: object = None

    def __post_init__(self):
        MADE.append(self)


def chained(end, *parts):
    """A journal's checksum, by code of its own."""
    hashed = hashlib.sha256(end)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        header = f"{type(part).__name__} {len(data)}\n"
        hashed.update(header.encode() + data)
    return hashed.digest()


def read_session(path, tree):
    folder = path / "session"
    folder.mkdir(exist_ok=True)
    (folder / "session.json").write_bytes(json.dumps(tree, sort_keys=True, indent=1).encode())
    return secure.read_session(folder)


def read_journal(path, tree, protocol=None):
    file = path / "journal.db"
    file.unlink(missing_ok=True)
    Journal(file, RandomizedResponse(4, 1.0))
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        ((form,),) = db.execute("SELECT format FROM header")
        packed = zlib.compress(json.dumps(tree).encode())
        start = chained(b"", form, packed)
        db.execute("UPDATE header SET protocol = ?, checksum = ?", (packed, start))
        db.execute("UPDATE ends SET checksum = ?", (start,))
    return Journal(file, protocol).protocol


def read_density(path, tree):
    (path / "density").write_text(json.dumps(tree))
    return Density.load(path / "density")


def read_plan(path, tree):
    content = tree["of"] if "of" in tree else {"strategy": tree}
    torch.save({"format": "torchdp plan", "version": 1, **content}, path / "plan")
    return training.Plan.load(path / "plan")


def session_tree():
    names = ("server-0", "server-1", "north", "analyst")
    parties = [
        secure.Party(name, f"{k:02x}" * 32, 4 * (name == "north")) for k, name in enumerate(names)
    ]
    question = SecureSketch(
        ones(4),
        2,
        1.0,
        1.0,
        1e-5,
        coalition=AdaptiveCoalition(0),
    )
    return described(secure.Session(question, tuple(parties[:2]), (parties[2],), parties[3]))


def density_tree():
    features = GaussianFourier(1).draw(3, generator=torch.Generator().manual_seed(0))
    kde = CentralKDE.calibrated(features, 8, 1.0, 1e-5)
    return described(kde.estimate(torch.zeros(8, 1).double()))


def plan_tree():
    return described(training.choose(training.Iterates(8), 60, 15, epsilon=1.0, delta=1e-3).best)


READERS = {
    "session": (read_session, session_tree),
    "journal": (read_journal, lambda: described(RandomizedResponse(4, 1.0))),
    "density": (read_density, density_tree),
    "plan": (read_plan, plan_tree),
}


def replaced(tree, wrong):
    """The tree with one of its nodes that name a class replaced, each in turn."""
    if isinstance(tree, list):
        for k, item in enumerate(tree):
            for each in replaced(item, wrong):
                yield [*tree[:k], each, *tree[k + 1 :]]
    if not isinstance(tree, dict):
        return
    if tree.keys() & {"made", "enum", "class"}:
        yield wrong
    for name, item in tree.get("of", {}).items():
        for each in replaced(item, wrong):
            yield {**tree, "of": {**tree["of"], name: each}}


@pytest.mark.parametrize("name", READERS)
def test_guarantee_no_reader_makes_a_class_that_does_not_belong(name, tmp_path, monkeypatch):
    """Foreign classes reached through namespaces and aliases, and torchdp's own in a wrong place:
    none is made.
    """
    read, tree = READERS[name]
    tree = tree()
    # the control: what belongs is made
    assert read(tmp_path, tree) is not None
    names = "torchdp.checks", "torchdp.privacy.guarantee", tree["made"].partition(":")[0]
    for module in map(sys.modules.get, names):
        monkeypatch.setattr(module, "Planted", Planted, raising=False)
        monkeypatch.setattr(module, "planted", sys.modules[__name__], raising=False)
        for path in ("Planted", "planted.Planted"):
            foreign = {"made": f"{module.__name__}:{path}", "of": {"value": None}}
            for wrong in replaced(tree, foreign):
                with pytest.raises(ValueError):
                    read(tmp_path, wrong)
    assert not MADE


def test_guarantee_torchdps_own_classes_are_made_where_they_belong_alone():
    own = {"made": "torchdp.privacy.guarantee:Guarantee", "of": {"epsilon": {"float": "0x1p0"}}}
    for wrong in replaced(session_tree(), own):
        with pytest.raises(ValueError, match="does not belong here"):
            made(wrong, secure.Session)


def test_guarantee_a_class_has_the_name_by_which_it_was_defined():
    """Every class that is reached through the namespaces of torchdp's loaded modules, two names
    deep.
    """
    seen = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torchdp":
            continue
        for key, value in list(vars(module).items()):
            inner = vars(value) if isinstance(value, ModuleType) else {}
            reached = {
                key: value,
                **{f"{key}.{deeper}": one for deeper, one in list(inner.items())},
            }
            for path, one in reached.items():
                if isinstance(one, type) and (one.__module__, one.__qualname__) != (name, path):
                    seen += 1
                    with pytest.raises(ValueError, match="is not torchdp's"):
                        made({"class": f"{name}:{path}"}, type)
    assert seen
    for path in (
        f"torchdp.secure.roles:{'os._wrap_close'}",
        "torchdp.batch:torch.nn.Linear",
        "os:PathLike",
    ):
        with pytest.raises(ValueError, match="is not torchdp's"):
            made({"class": path}, type)
    # it would do more than hold what it is made from
    with pytest.raises(ValueError, match="is no dataclass"):
        made({"made": "torchdp.collection.journal:Journal", "of": {}}, object)
    assert made({"class": "torchdp.privacy.guarantee:Guarantee"}, type) is Guarantee  # a control


IMPORTS = """
import json, sys
from types import ModuleType
from torchdp import secure
from torchdp.collection import Journal
from torchdp.density import CentralKDE, Density, GaussianFourier
from torchdp.description import made
from torchdp.training import Plan
before = set(sys.modules)
for name in ("torchdp.sklearn:PrivateRidge", "torchdp.training.transformers:TrainingArguments", "torchdp.simulate:np",
             "torchdp.sklearn:base.BaseEstimator", "os:system", "torchdp.training.lightning:Callback"):
    for root in (secure.Session, Density, Plan):
        try:
            made({"made": name, "of": {}}, root, rooms=sys.modules[root.__module__].PACKAGES)
        except ValueError:
            continue
        raise SystemExit(f"{name} was made")
print(*set(sys.modules) - before)
"""


def test_reading_imports_no_module_that_is_not_torchdps():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not [each for each in done.stdout.split() if not each.startswith("torchdp")]


def test_a_class_that_another_version_had_is_refused_by_its_name():
    gone = {"made": "torchdp.queries.oracle:AdaptiveOracle", "of": {}}
    with pytest.raises(
        ValueError, match=r"AdaptiveOracle is not torchdp's \(another version .*CHANGELOG"
    ):
        made(gone, object)


def test_a_journal_of_before_a_field_was_added_is_read(tmp_path):
    plain = LocalOracle(torch.eye(3), RandomizedResponse(3, 1.0))
    older = described(plain)
    del older["of"]["adapted"]
    for given in (None, plain):
        assert read_journal(tmp_path, older, given).adapted is False
    client = StrategyMatrix((torch.ones(3, 3) + torch.eye(3)).double() / 4)
    twice = LocalOracle(torch.eye(3), client, adapted=True)
    assert read_journal(tmp_path, described(twice), twice).adapted
    older = described(twice)
    del older["of"]["adapted"]
    # the field's default is another decoder
    with pytest.raises(ValueError, match="adapted differs"):
        read_journal(tmp_path, older, twice)
