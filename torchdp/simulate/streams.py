"""Seeds: randomness is a function of the run seed, the configuration and the block index alone."""

import hashlib
import json
import math
from collections.abc import Mapping

import torch

from torchdp.checks import integer
from torchdp.randomness import keyed_generator

# Enters every seed: where streams are made in another way its number rises, and no old block is
# taken for a new one.
STREAM = "torchdp.simulate/1"


def canonical(config: Mapping[str, object], name: str = "config") -> str:
    """``config`` as one JSON line: sorted keys, no spaces, ASCII, no NaN.

    Values are str, int, float (finite), bool, None, or lists of those. ``1``, ``1.0`` and ``True``
    are three different values.

    Raises TypeError for anything else (tuples, tensors, numpy integers, nested dicts), ValueError
    for a NaN or an infinity.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"{name} must be a dict, not {type(config).__name__}")
    for key, value in config.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must have str keys, not {key!r}")
        _check(f"{name}[{key!r}]", value)
    # JSON writes 1, 1.0 and true in three ways, so that they stay three values.
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def digest(config: Mapping[str, object]) -> str:
    """SHA-256 of :func:`canonical` ``(config)``, 64 hex digits. Raises TypeError, ValueError."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()


def block_generator(
    seed: int, config: Mapping[str, object], block: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator for one block of one configuration.

    Its stream is a function of ("torchdp.simulate/1", seed, digest(config), block) and of the kind
    of device.

    Args:
        seed: run seed, an integer >= 0 of any size.
        config: see :func:`canonical`.
        block: index of the block, >= 0.
        device: where the generator lives; the draws differ from one kind of device to another.

    Raises:
        TypeError, ValueError: on a configuration or an index of another kind.
    """
    seed = integer("seed", seed, 0)
    block = integer("block", block, 0)
    # One line each: no two keys share a text, so no two blocks share a stream.
    key = f"{STREAM}\n{seed}\n{digest(config)}\n{block}"
    return keyed_generator(key.encode(), device)


def _check(name: str, value: object) -> None:
    # No tuples: JSON gives them back as lists, and what is stored would not be what was asked.
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(f"{name}[{index}]", item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, not {value!r}")
    elif not isinstance(value, str | int | None):
        raise TypeError(
            f"{name} must be str, int, float, bool, None or a list of those, "
            f"not {type(value).__name__}; "
            "convert it first, for example with int(), float() or .tolist()"
        )
