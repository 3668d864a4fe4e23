"""``torchdp estimate``: statistics of a table, or of its groups; ``plan``: the users they take."""

import argparse
import json
import math
import warnings
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchdp import checks
from torchdp.cli.questions import Answer, Asked, Question, Terms, bounded_by
from torchdp.cli.statistics import SHARE, asking
from torchdp.cli.table import read_users
from torchdp.noise import Noise, SeededNoise
from torchdp.protocol import MessageProtocol
from torchdp.protocol.records import single
from torchdp.text import aligned, say, shown

# Users for whom a plan's first protocol is chosen: a guess, which the rounds below correct.
FIRST = 10_000
# Of choosing a protocol for the users that the last one needs: the choice may go back and forth
# between two of them for ever.
ROUNDS = 4
# Users of a plan: more than there are people, and below 2^53, so that n is exact as a float.
MOST = 2**50
# Times as many users: so near, no other protocol would be chosen.
SETTLED = 1.25
# An error of shares that says nothing: the guess 1/2 has no larger one.
MOST_SHARE = 0.5
# Times as many users where those of a plan are not enough: so far it may end above the least.
SLOWER = 1.02
TRUSTED = {
    "local": "nobody: each row is randomized as its user would, before anything is computed",
    "shuffle": "a shuffler: it must hide who sent which message; "
    "the messages are protected together",
    "curator": "whoever holds the table and sees everybody's data: this output alone is protected",
}


@dataclass(frozen=True)
class Heard:
    """What is printed of one group; bound: what no unbiased protocol's error is below."""

    group: str
    users: int
    answers: list[Answer]
    bound: float | None


def terms_of(options: argparse.Namespace, trust: str) -> Terms:
    """What is promised to users, checked. Raises ValueError."""
    epsilon = checks.positive("--epsilon", options.epsilon)
    if trust != "local" and options.protocol not in ("auto", "best"):
        raise ValueError(
            f"--protocol {options.protocol} is of the local model: add --trust local, "
            "or leave out --protocol"
        )
    delta = options.delta
    if delta is not None:
        delta = checks.fraction("--delta", delta)
        if trust == "local":
            raise ValueError(
                "--delta is for --trust shuffle or curator: leave it out, local protocols have none"
            )
    population = vars(options).get("population", False)
    return Terms(trust, epsilon, delta, options.protocol, population)


def estimate(options: argparse.Namespace) -> int:
    """Reads, asks the users or their curator, prints.

    The answer depends on the rows through what the protocol releases and their number alone (unless
    --bounds-from-data is given); an error about a cell names its row, never its value.
    """
    # Options are refused before the table is read.
    terms = terms_of(options, options.trust)
    checks.fraction("--level", options.level)
    if options.csv is None:
        raise ValueError(
            "--csv FILE is needed: the table to estimate from; "
            "torchdp plan makes a plan without one"
        )
    # None is a cipher keyed by the system. Noise from a stated seed can be drawn again, and taken
    # off.
    noise = None
    if options.seed is not None:
        noise = SeededNoise(checks.integer("--seed", options.seed, 0))
    question, parts, notes = ask(options, noise)
    users = sum(len(types) for _, types in parts)
    # Groups share no users, so that each user spends one (epsilon, delta), stated for all.
    terms = replace(terms, delta=terms.delta_of(users))
    # By numbers of users alone: a choice that looked at their rows would cost privacy.
    name, protocol = question.choose(users // len(parts), terms)
    groups = []
    for group, types in parts:
        own = protocol
        if terms.trust == "shuffle" and len(parts) > 1:
            # The shuffler's noise is made for a crowd of so many users.
            name, own = question.choose(len(types), terms)
        answers, bound = _answers(question, own, types, noise, options)
        groups.append(Heard(group, len(types), answers, bound))
    if options.bounds_from_data:
        notes.append("the bounds were read from the data: this run is NOT PRIVATE")
    if options.seed is not None:
        notes.append("noise from a stated seed can be removed: for trying out only")
    say(*(f"torchdp estimate: {note}" for note in notes), error=True)
    words = question.words
    if len(groups[0].answers) > 1:
        words += "; intervals hold all answers of a group at once"
    result = {
        "statistic": question.title,
        "discretisation": words,
        "level": options.level,
        "error_of": "privacy noise",
        **_asked(name, protocol, terms),
        "source": protocol.guarantee.source,
    }
    if options.population:
        result["error_of"] += " and sampling from a population"
    if options.json:
        say(json.dumps(_record(result, groups)))
    else:
        say(*_table(result, groups, question.unit))
    return 0


def ask(
    options: argparse.Namespace, noise: Noise | None = None
) -> tuple[Question, list[tuple[str, Tensor]], list[str]]:
    """The question, each group's name with its users' types, and words about who was left out.

    Raises ValueError, OSError.
    """
    asked = asking(options)
    if not options.bounds_from_data:
        # Refuses what lacks bounds, before the table is read.
        asked.axes()
    notes: list[str] = []
    users = read_users(options, asked.labels, notes, asked.since)
    axes = asked.axes(users)
    question = asked.question(axes)
    users, types = asked.coded(users, axes, noise, notes)
    least = question.least
    parts = []
    if options.group is None:
        if len(users) >= least:
            parts.append(("", types))
    else:
        for name, where in users.groupby(options.group).indices.items():
            if len(where) >= least:
                parts.append((str(name), types[where]))
            else:
                notes.append(
                    f"group {name!r} is left out: it has {len(where)} users, {least} are needed"
                )
    if not parts:
        raise ValueError(
            f"--csv holds {len(users)} rows to ask; this statistic needs at least {least} users"
        )
    return question, parts, notes


def _answers(
    question: Question,
    protocol: Asked,
    types: Tensor,
    noise: Noise | None,
    options: argparse.Namespace,
) -> tuple[list[Answer], float | None]:
    # Recorded, to be said once and in the words of this command.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tally = protocol.collect(types, noise=noise)
        answers = question.answers(protocol, tally, options.level, options.population)
    for warning in caught:
        if issubclass(warning.category, UserWarning):  # torchdp's own
            say(f"torchdp estimate: {warning.message}", error=True)
    if not all(answer.finite for answer in answers):
        raise ValueError(
            "the messages give no finite estimate: one class looks empty, or --epsilon is too small"
        )
    # Read off the messages, which costs no further privacy.
    shares = question.shares(protocol, tally) if options.trust == "local" else None
    if shares is None:
        return answers, None
    return answers, question.bound(single(tally.n), options.epsilon, shares)


def _record(result: dict[str, Any], groups: list[Heard]) -> dict[str, Any]:
    """One answer lies flat in the record; several are a list."""
    rows = []
    for group in groups:
        for answer in group.answers:
            row: dict[str, Any] = {"group": group.group} if group.group else {}
            row["users"] = group.users
            if len(group.answers) > 1:
                row["answer"] = answer.name
            row["estimate"] = answer.value
            row["predicted_rmse"] = answer.error
            row["interval"] = list(answer.interval)
            row["lower_bound"] = group.bound
            if answer.p_value is not None:
                row["p_value"] = answer.p_value
            rows.append(row)
    alone = len(rows) == 1 and not groups[0].group
    return result | (rows[0] if alone else {"answers": rows})


def _table(result: dict[str, Any], groups: list[Heard], unit: str) -> list[str]:
    level = f"{100 * result['level']:g} % interval"
    users = sum(group.users for group in groups)
    lines = [(result["statistic"], f"{users} users, {result['discretisation']}")]
    first = groups[0]
    if len(groups) == len(first.answers) == 1 and not first.group:
        answer = first.answers[0]
        low, high = answer.interval
        error = f"{answer.error:.3g} {unit}".strip()
        lines += [
            ("estimate", f"{answer.value:.6g}"),
            ("predicted RMSE", f"{error} ({result['error_of']}, computed from the messages)"),
            ("lower bound", _bound(first, result)),
            (level, f"[{low:.6g}, {high:.6g}]"),
        ]
    else:
        columns = f"estimate, {level}, +- predicted RMSE {unit}".strip()
        lines.append(("answer", f"{columns} ({result['error_of']})"))
        for group in groups:
            if group.group:
                lines.append((f"{shown(group.group)}: {group.users} users", ""))
            lines += [("  " + answer.name, _line(answer)) for answer in group.answers]
            lines.append(("  lower bound", _bound(group, result)))
    return aligned([*lines, *_protocol(result), ("source", result["source"])])


def _asked(name: str, protocol: Asked, terms: Terms) -> dict[str, Any]:
    """Who is trusted, what each user sends, and what it costs, which may be less than stated."""
    guarantee = protocol.guarantee
    said = str(guarantee)
    bits = protocol.bits_per_user if isinstance(protocol, MessageProtocol) else None
    spent = f"epsilon = {guarantee.epsilon:g}"
    stated = f"epsilon = {terms.epsilon:g}"
    # A protocol may spend less than it was given: then both are said.
    if spent != stated:
        before, _, after = said.partition(spent)
        said = f"{before.removesuffix('exactly ')}{stated} (spent: {guarantee.epsilon:g}){after}"
    return {
        "trust": terms.trust,
        "protocol": name,
        "bits_per_user": bits,
        "epsilon": guarantee.epsilon,
        "delta": terms.delta,
        "guarantee": f"{said} (neighbours: {guarantee.neighbours.value})",
    }


def _protocol(result: dict[str, Any]) -> list[tuple[str, str]]:
    bits = result["bits_per_user"]
    sent = "" if bits is None else f", {bits:g} bits for each user"
    rows = [
        ("trusted", TRUSTED[result["trust"]]),
        ("protocol", result["protocol"] + sent),
        ("guarantee", result["guarantee"]),
    ]
    if result["delta"] is not None:
        words = "may be spent (without --delta: the largest power of ten up to 1/(10 users))"
        rows.append(("delta", f"{result['delta']:g} {words}"))
    return rows


def _bound(group: Heard, result: dict[str, Any]) -> str:
    words = bounded_by(group.bound)
    if group.bound is None:
        return words
    if len(group.answers) > 1:
        tested = any(answer.p_value is not None for answer in group.answers)
        words += " of the AUC" if tested else ", root mean square"
    if "population" in result["error_of"]:
        words += ", of the noise alone"
    return f"{words}, at the estimated histogram"


def _line(answer: Answer) -> str:
    low, high = answer.interval
    line = f"{answer.value:<10.6g}  [{low:.6g}, {high:.6g}]  +- {answer.error:.3g}"
    if answer.p_value is None:
        return line
    return f"{line}  p = {answer.p_value:.3g} {answer.words}"


def plan(options: argparse.Namespace) -> int:
    """Prints, for each who may be trusted, the users of an --error, or the error of --users."""
    if (options.error is None) == (options.users is None):
        raise ValueError("--error ERROR or --users N is needed, one of both: what the plan is for")
    plans = []
    for trust in (options.trust,) if options.trust else TRUSTED:
        terms = terms_of(options, trust)
        # How many bins are asked depends on who is trusted: each plan has its own question.
        asked = asking(argparse.Namespace(**{**vars(options), "trust": trust}))
        question = asked.question(asked.axes())
        unit = question.unit
        if options.users is None:
            n, name, protocol = _least(question, terms, options, unit)
        else:
            n = checks.integer("--users", options.users, question.least)
            name, protocol = question.choose(n, terms)
        errors = question.errors(protocol, n)
        bound = question.bound(n, terms.epsilon, None) if terms.local else None
        if bound is not None and bound > question.error(protocol, n):
            # A biased protocol was chosen: what no unbiased one can beat says nothing of it.
            bound = None
        own = _asked(name, protocol, replace(terms, delta=terms.delta_of(n)))
        rmse = errors[0][1] if len(errors) == 1 else dict(errors)
        numbers = {"users": n, "predicted_rmse": rmse, "lower_bound": bound}
        plans.append({**numbers, **own, "discretisation": question.words})
    if options.json:
        words = {"statistic": question.title, "assumes": question.assumes}
        say(json.dumps(words | (plans[0] if options.trust else {"plans": plans})))
        return 0
    lines = [(question.title, f"predicted RMSE: privacy noise, {question.assumes}")]
    for found in plans:
        lines.append((f"--trust {found['trust']}", TRUSTED[found["trust"]]))
        lines.append(("  users", f"{found['users']}"))
        rmse = found["predicted_rmse"]
        rows = rmse if isinstance(rmse, dict) else {"predicted RMSE": rmse}
        for title, error in rows.items():
            lines.append((f"  {title}", f"{error:.3g} {unit}".strip()))
        if found["trust"] == "local":
            lines.append(("  lower bound", bounded_by(found["lower_bound"])))
        for title, text in _protocol(found)[1:3]:  # protocol and guarantee
            lines.append((f"  {title}", text))
        lines.append(("  asked", found["discretisation"]))
    say(*aligned(lines))
    return 0


def _least(
    question: Question, terms: Terms, options: argparse.Namespace, unit: str
) -> tuple[int, str, Asked]:
    """The users whose error is at most --error, and their protocol. Raises ValueError."""
    error = checks.positive("--error", options.error)
    if len(options.statistic) > 1:
        raise ValueError(
            "--error is of one statistic; of several give --users N, which prints the error of each"
        )
    if unit == SHARE and error >= MOST_SHARE:
        raise ValueError(
            f"--error of --statistic {options.statistic[0]} is an error in shares of users: "
            f"it must be below {MOST_SHARE:g}, such as 0.02, not {error:g}"
        )
    n = FIRST
    # The best protocol depends on n, and n on the protocol.
    for _ in range(ROUNDS):
        name, protocol = question.choose(n, terms)
        last = n
        n = least_users(question, protocol, error)
        if 1 / SETTLED < n / last < SETTLED:
            break
    while not terms.local:
        # Noise of a curator or shuffler is made for n users: for others it is another protocol.
        name, protocol = question.choose(n, terms)
        if question.error(protocol, n) <= error:
            break
        n = math.ceil(SLOWER * n)
    return n, name, protocol


def least_users(question: Question, protocol: Asked, error: float) -> int:
    """By bisection: errors fall with n. Raises ValueError where no number of users is enough."""
    numbers = range(question.least, MOST + 1)
    # A range of 2^50 numbers takes no memory, and some fifty of them are looked at.
    place = bisect_left(numbers, True, key=lambda n: question.error(protocol, n) <= error)
    if place == len(numbers):
        raise ValueError(
            f"--error {error:g} takes more than 2^50 users; take a larger error or --epsilon"
        )
    return numbers[place]
