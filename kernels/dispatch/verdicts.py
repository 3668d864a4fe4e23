"""What ``torchdp doctor`` has found of this device's kernels, kept in the user's cache directory.

One small file for each kind of device, torch, Triton and source of the kernels; written whole and renamed into place,
so that a reader meets an old file or a new one. A file that can not be read or written is a warning, never an error.
"""

import functools
import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import torch

LARGEST = 2**20  # bytes


@dataclass(frozen=True)
class Verdicts:
    """faults: of kernels and their forms, None where they agree, "" for all forms. tiles: by package and constant."""

    faults: dict[str, dict[str, str | None]] = field(default_factory=dict)
    tiles: dict[str, dict[str, int]] = field(default_factory=dict)


def read(device: torch.device) -> Verdicts:
    """Those kept for this kind of device; none on a CPU."""
    return _read(path(device)) if device.type == "cuda" else Verdicts()


@functools.cache
def _read(file: Path | None) -> Verdicts:
    try:
        if file is None or not file.is_file():
            return Verdicts()
        if file.stat().st_size > LARGEST:
            raise ValueError("too long")
        found = json.loads(file.read_text(encoding="utf-8"))
        return _checked(Verdicts(found["faults"], found["tiles"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        warnings.warn(
            f"{file} is not read ({type(error).__name__}); torchdp doctor writes it anew", RuntimeWarning, 2
        )
        return Verdicts()


def write(device: torch.device, found: Verdicts) -> Path | None:
    """Keeps them; None, with a warning, where that can not be."""
    file = path(device)
    try:
        if file is None:
            raise OSError("no home directory")
        file.parent.mkdir(parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(dir=file.parent)
        try:
            with open(number, "w", encoding="utf-8") as text:
                json.dump(asdict(found), text, indent=1, sort_keys=True)
            os.replace(draft, file)
        except OSError:
            os.unlink(draft)
            raise
    except OSError as error:
        warnings.warn(f"the verdicts are not kept: {error}; each process tries for itself", RuntimeWarning, 2)
        return None
    _read.cache_clear()
    return file


def path(device: torch.device) -> Path | None:
    """Where they are kept; None without a home directory."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    facts = "\n".join((name, torch.__version__, version("triton"), sources()))
    return Path(home) / "torchdp" / f"kernels-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"


@functools.cache
def sources() -> str:
    """A hash of every kernel's source."""
    total = hashlib.sha256()
    for file in sorted(Path(__file__).resolve().parent.parent.rglob("*.py")):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


@functools.cache
def version(package: str) -> str:
    """Of an installed package; "absent"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _checked(found: Verdicts) -> Verdicts:
    """Raises ValueError, AttributeError for what ``write`` does not write."""
    texts = all(isinstance(fault, str | None) for forms in found.faults.values() for fault in forms.values())
    sizes = [size for tiles in found.tiles.values() for size in tiles.values()]
    if not texts or not all(type(size) is int for size in sizes):
        raise ValueError("a verdict is a text or null, a size a whole number")
    return found
