"""``torchdp secure``: the roles of a secure sum over several organisations' tables."""

import argparse
import json
import math
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp import secure as roles
from torchdp.cli.table import read_users
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate
from torchdp.regression import FrequencyMoments, GramRelease, SecureHistogram, adaptive_ridge
from torchdp.regression.second_moment_noise import NoisyMoments
from torchdp.secure.sums import SecureSums
from torchdp.sketching import AdaptiveCoalition, ones
from torchdp.text import aligned, integer, say


def secure(options: argparse.Namespace) -> int:
    """Plays one role; prints what it did."""
    if options.role == "keys":
        for path in roles.new_keys(options.into, *options.names):
            secret = path.with_suffix(".key")
            say(f"{secret} stays here, as secret as the data; {path} goes to everybody")
        return 0
    if options.role == "open":
        # ``_show`` says it, in a line of its own.
        with warnings.catch_warnings(action="ignore"):
            roles.open_session(options.folder, _session(options))
    if options.role in ("open", "show"):
        _show(roles.read_session(options.folder))
        return 0
    key = roles.KeyFile(options.key)
    if options.role == "join":
        session = roles.read_session(options.folder)
        key.join(session, options.fingerprint)
        _show(session)
        return 0
    session = roles.joined_session(options.folder, key)
    if options.role == "submit":
        noise = None
        if options.seed is not None:
            noise = SeededNoise(checks.integer("--seed", options.seed, 0))
            say(
                "torchdp secure: noise from a stated seed can be removed: for trying out only",
                error=True,
            )
        roles.submit(options.folder, key, _table(options.csv, session), noise=noise)
    elif options.role == "serve":
        roles.serve(options.folder, key, wait=options.wait)
    else:
        _answer(session, roles.release(options.folder, key, wait=options.wait), options)
        return 0
    say(f"{key.name} is done with session {session.fingerprint}")
    return 0


def _session(options: argparse.Namespace) -> roles.Session:
    """What the options ask, of whom. Raises ValueError, OSError."""
    organisations = []
    for text in options.organisations:
        # From the right: a path may hold =, a number none.
        path, _, clients = text.rpartition("=")
        try:
            organisations.append(_party(path, integer(clients)))
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"--organisations {text!r} must read NAME.pub=CLIENTS: {error}"
            ) from None
    question = _question(options, sum(party.clients for party in organisations))
    # Part of the session that all parties accept: every organisation sums the same columns.
    names = list(options.columns)
    if options.label is not None:
        names.append(options.label)
    if options.question == "histogram":
        names += options.categories.split(",")
    servers = tuple(_party(path) for path in options.servers)
    analyst = _party(options.analyst)
    return roles.Session(question, servers, tuple(organisations), analyst, tuple(names))


def _party(path: str, clients: int = 0) -> roles.Party:
    try:
        name, public = Path(path).read_text().split()
        return roles.Party(name, public, clients)
    except ValueError as error:
        raise ValueError(f"{path} is no public key of torchdp secure keys: {error}") from None


def _question(options: argparse.Namespace, n: int) -> SecureSums | roles.SharedSum[Any]:
    """The protocol, of n clients. Raises ValueError naming the option that is missing."""
    kind = options.question
    columns = options.columns
    budget = (options.epsilon, options.delta)
    # None: the protocol takes the clients of the largest organisation, which knows their noise
    gone = {"corrupt": options.corrupt, "absent": options.absent}
    if kind != "histogram" and options.bound is None:
        raise ValueError(f"--bound is needed for {kind}: state it without looking at the data")
    if kind in ("moments", "histogram") and len(columns) != 1:
        raise ValueError(f"--columns must name one column for {kind}, not {len(columns)}")
    if kind == "histogram":
        if options.categories is None:
            raise ValueError("--categories A,B,... is needed for a histogram: its public list")
        return SecureHistogram(n, len(options.categories.split(",")), *budget, **gone)
    if kind == "moments":
        return FrequencyMoments(n, options.bound, tuple(options.orders), *budget, **gone)
    if kind == "gram":
        if (options.label is None) != (options.label_bound is None):
            raise ValueError("--label and --label-bound come together")
        return GramRelease(n, len(columns), options.bound, *budget, options.label_bound, **gone)
    coalition = AdaptiveCoalition(**gone)
    sums = (ones(n), len(columns), options.bound)
    # Without a delta only discrete Laplace noise has a guarantee.
    if options.delta == 0:
        return roles.PureSecureSketch(*sums, options.epsilon, coalition=coalition)
    return roles.SecureSketch(*sums, *budget, coalition=coalition)


def _table(path: str, session: roles.Session) -> Tensor:
    """An organisation's rows, as the question takes them. Raises ValueError, OSError."""
    columns = list(session.columns)
    labels = {}
    if isinstance(session.question, SecureHistogram):
        column, *categories = columns
        columns = [column]
        labels = {column: categories}
    # Read in one way by all: rows that one organisation drops, or a decimal comma, would make sums
    # of different things.
    how = argparse.Namespace(
        csv=path,
        columns=columns,
        delimiter=",",
        decimal=".",
        encoding="utf-8-sig",
        missing="refuse",
        group=None,
    )
    users = read_users(how, labels, [])
    values = torch.from_numpy(users.to_numpy(dtype="float64", copy=True))
    if labels:
        return values[:, 0].long()
    if isinstance(session.question, FrequencyMoments):
        return values[:, 0]
    return values


def _show(session: roles.Session) -> None:
    question = session.question
    if session.exposed is not None:
        say(f"torchdp secure: {session.exposed}", error=True)
    names = [field.name for field in fields(question)]  # type: ignore[arg-type]
    # The sketch is left out: it holds a row and a sign for each client.
    asked = [f"{name} = {getattr(question, name)}" for name in names if name != "sketch"]
    rows = [(party.name, f"{party.clients} clients") for party in session.organisations]
    rows += [(party.name, "server") for party in session.servers]
    rows.append((session.analyst.name, "analyst"))
    words = ", ".join([*session.columns, *asked])
    say(
        *aligned(rows),
        f"{type(question).__name__} of {words}: {session.sums.guarantee}",
        f"fingerprint {session.fingerprint}: compare it with the others' by another channel",
    )


def _answer(session: roles.Session, found: Estimate, options: argparse.Namespace) -> None:
    names, value, error = _named(session, found)
    result: dict[str, Any] = {
        "n": found.n,
        "guarantee": str(session.sums.guarantee),
        "names": names,
        "value": value.tolist(),
        "standard_error": error.tolist(),
    }
    lines = [(name, f"{v:.6g} +- {e:.3g}") for name, v, e in zip(names, value, error, strict=True)]
    if isinstance(found, NoisyMoments) and found.cross is not None:
        weights = adaptive_ridge(found, ridge=options.ridge).tolist()
        result["coefficients"] = weights
        for name, weight in zip(session.columns, weights, strict=False):  # the label comes last
            lines.append((f"coefficient of {name}", f"{weight:.6g}"))
    if options.json:
        say(json.dumps(result))
    else:
        say(*aligned(lines), f"{found.n} clients; {result['guarantee']}")


def _named(session: roles.Session, found: Estimate) -> tuple[list[str], Tensor, Tensor]:
    """Names of the answer's numbers; these, in the question's own unit; their errors."""
    question = session.question
    columns = list(session.columns)
    value = found.value.flatten()
    error = found.standard_error.flatten()
    if isinstance(question, GramRelease):
        d = question.columns
        pairs = [(i, j) for i in range(d) for j in range(i, d)]
        if question.labelled:
            pairs += [(i, d) for i in range(d)]
        # svec holds sqrt 2 times what stands off the diagonal
        factors = [1.0 if i == j or j == d else math.sqrt(0.5) for i, j in pairs]
        scales = torch.tensor(factors, dtype=torch.float64)
        names = [f"{columns[i]} * {columns[j]}" for i, j in pairs]
        return names, value * scales, error * scales
    if isinstance(question, FrequencyMoments):
        return [f"{columns[0]} ^ {order:g}" for order in question.orders], value, error
    if isinstance(question, SecureHistogram):
        return columns[1:], value, error
    return columns, value, error
