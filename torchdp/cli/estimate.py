"""``torchdp estimate``: statistics of a table, or of each of its groups. ``torchdp plan``: the
users that they take.
"""

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

FIRST, ROUNDS, MOST = 10_000, 4, 2**50  # users, of a plan
MOST_SHARE = 0.5  # an error of shares that says nothing
SLOWER = 1.02  # times as many users where those of a plan are not enough
TRUSTED = {
    "local": "nobody: each row is randomized as its user would, before anything is computed",
    "shuffle": "a shuffler: it must hide who sent which message; the messages are protected together",
    "curator": "whoever holds the table and sees everybody's data: this output alone is protected",
}


@dataclass(frozen=True)
class Heard:
    """What was said of one group: its name, the users, the answers, what no unbiased protocol's
    error is below.
    """

    group: str
    users: int
    answers: list[Answer]
    bound: float | None


def terms_of(options: argparse.Namespace, trust: str) -> Terms:
    """What is promised to users, checked. Raises ValueError."""
    epsilon = checks.positive("--epsilon", options.epsilon)
    if trust != "local" and options.protocol not in ("auto", "best"):
        raise ValueError(
            f"--protocol {options.protocol} is of the local model: add --trust local, or leave out --protocol"
        )
    delta = options.delta
    if delta is not None:
        delta = checks.fraction("--delta", delta)
        if trust == "local":
            raise ValueError(
                "--delta is for --trust shuffle or curator: leave it out, local protocols have none"
            )
    return Terms(trust, epsilon, delta, options.protocol)


def estimate(options: argparse.Namespace) -> int:
    """Reads, asks the users or their curator, prints.

    The answer depends on the rows through what the protocol releases and their number alone (unless
    --bounds-from-data is given); an error about a cell names its row, never its value.
    """
    terms = terms_of(options, options.trust)
    if 1 < options.level < 100:
        raise ValueError(
            f"--level must be a fraction below 1: did you mean {options.level / 100:g}?"
        )
    checks.fraction("--level", options.level)
    if options.csv is None:
        raise ValueError(
            "--csv FILE is needed: the table to estimate from; torchdp plan makes a plan without one"
        )
    noise = None if options.seed is None else SeededNoise(checks.integer("--seed", options.seed, 0))
    question, parts, notes = ask(options, noise)
    users = sum(len(types) for _, types in parts)
    terms = replace(terms, delta=terms.delta_of(users))
    name, protocol = question.choose(users // len(parts), terms)
    heard = []
    for group, types in parts:
        own = protocol
        if terms.trust == "shuffle" and len(parts) > 1:  # a crowd is of so many users
            name, own = question.choose(len(types), terms)
        heard.append(Heard(group, len(types), *_hear(question, own, types, noise, options)))
    if options.bounds_from_data:
        notes.append("the bounds were read from the data: this run is NOT PRIVATE")
    if options.seed is not None:
        notes.append("noise from a stated seed can be removed: for trying out only")
    say(*(f"torchdp estimate: {note}" for note in notes), error=True)
    several = "; intervals hold all answers of a group at once" if len(heard[0].answers) > 1 else ""
    result = {
        "statistic": question.title,
        "discretisation": question.words + several,
        "level": options.level,
        "error_of": "privacy noise and sampling from a population"
        if options.population
        else "privacy noise",
        **_asked(name, protocol, terms),
        "source": protocol.guarantee.source,
    }
    if options.json:
        say(json.dumps(_record(result, heard)))
    else:
        say(*_table(result, heard, question.unit))
    return 0


def ask(
    options: argparse.Namespace, noise: Noise | None = None
) -> tuple[Question, list[tuple[str, Tensor]], list[str]]:
    """The question, each group's name with its users' types, and words about who was left out.

    Raises ValueError, OSError.
    """
    asked = asking(options)
    if not options.bounds_from_data:
        asked.axes()  # refuses what lacks bounds, before the table is read
    notes: list[str] = []
    users = read_users(options, asked.labels, notes, asked.since)
    axes = asked.axes(users)
    question = asked.question(axes)
    users, types = asked.coded(users, axes, noise, notes)
    places = (
        {"": range(len(users))} if options.group is None else users.groupby(options.group).indices
    )
    found = []
    for name, where in places.items():
        if len(where) >= question.least:
            found.append((str(name), types[where]))
        elif options.group is not None:
            notes.append(
                f"group {name!r} is left out: it has {len(where)} users, {question.least} are needed"
            )
    if not found:
        raise ValueError(
            f"--csv holds {len(users)} rows to ask; this statistic needs at least {question.least} users"
        )
    return question, found, notes


def _hear(
    question: Question,
    protocol: Asked,
    types: Tensor,
    noise: Noise | None,
    options: argparse.Namespace,
) -> tuple[list[Answer], float | None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tally = protocol.collect(types, noise=noise)
        answers = question.answers(protocol, tally, options.level, options.population)
    for each in caught:
        if issubclass(each.category, UserWarning):  # torchdp's own
            say(f"torchdp estimate: {each.message}", error=True)
    if not all(each.finite for each in answers):
        raise ValueError(
            "the messages give no finite estimate: one class looks empty, or --epsilon is too small"
        )
    shares = question.shares(protocol, tally) if options.trust == "local" else None
    return answers, None if shares is None else question.bound(
        single(tally.n), options.epsilon, shares
    )


def _record(result: dict[str, Any], heard: list[Heard]) -> dict[str, Any]:
    """One answer lies flat in the record; several are a list."""
    rows: list[dict[str, Any]] = [
        ({"group": each.group} if each.group else {})
        | {"users": each.users}
        | ({"answer": one.name} if len(each.answers) > 1 else {})
        | {"estimate": one.value, "predicted_rmse": one.error, "interval": list(one.interval)}
        | {"lower_bound": each.bound}
        | ({} if one.p_value is None else {"p_value": one.p_value})
        for each in heard
        for one in each.answers
    ]
    return result | (rows[0] if len(rows) == 1 and not heard[0].group else {"answers": rows})


def _table(result: dict[str, Any], heard: list[Heard], unit: str) -> list[str]:
    level, users = f"{100 * result['level']:g} % interval", sum(each.users for each in heard)
    lines = [(result["statistic"], f"{users} users, {result['discretisation']}")]
    if len(heard) == len(heard[0].answers) == 1 and not heard[0].group:
        one, words = heard[0].answers[0], f"({result['error_of']}, computed from the messages)"
        lines += [
            ("estimate", f"{one.value:.6g}"),
            ("predicted RMSE", " ".join(filter(None, (f"{one.error:.3g}", unit, words)))),
            ("lower bound", _bound(heard[0], result)),
            (level, f"[{one.interval[0]:.6g}, {one.interval[1]:.6g}]"),
        ]
    else:
        lines += [
            (
                "answer",
                f"estimate, {level}, +- predicted RMSE {unit}".strip() + f" ({result['error_of']})",
            )
        ]
        for each in heard:
            lines += [(f"{shown(each.group)}: {each.users} users", "")] if each.group else []
            lines += [("  " + one.name, _line(one)) for one in each.answers]
            lines += [("  lower bound", _bound(each, result))]
    return aligned([*lines, *_protocol(result), ("source", result["source"])])


def _asked(name: str, protocol: Asked, terms: Terms) -> dict[str, Any]:
    """Who is trusted, what each user sends, and what it costs: less than was stated may be
    spent.
    """
    guarantee = protocol.guarantee
    said = str(guarantee)
    spent = f"epsilon = {guarantee.epsilon:g}"
    stated = f"epsilon = {terms.epsilon:g}"
    if spent != stated:
        before, _, after = said.partition(spent)
        said = f"{before.removesuffix('exactly ')}{stated} (spent: {guarantee.epsilon:g}){after}"
    return {
        "trust": terms.trust,
        "protocol": name,
        "bits_per_user": protocol.bits_per_user if isinstance(protocol, MessageProtocol) else None,
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


def _bound(each: Heard, result: dict[str, Any]) -> str:
    if each.bound is None:
        return bounded_by(None)
    several = len(each.answers) > 1
    which = (
        " of the AUC"
        if any(one.p_value is not None for one in each.answers)
        else ", root mean square"
    )
    noise = ", of the noise alone" if "population" in result["error_of"] else ""
    return (
        bounded_by(each.bound) + (which if several else "") + noise + ", at the estimated histogram"
    )


def _line(one: Answer) -> str:
    low, high = one.interval
    test = "" if one.p_value is None else f"  p = {one.p_value:.3g} {one.words}"
    return f"{one.value:<10.6g}  [{low:.6g}, {high:.6g}]  +- {one.error:.3g}{test}"


def plan(options: argparse.Namespace) -> int:
    """Prints, for each who may be trusted, the users whose predicted error is at most --error, or
    that of --users.
    """
    if (options.error is None) == (options.users is None):
        raise ValueError("--error ERROR or --users N is needed, one of both: what the plan is for")
    found = []
    for trust in (options.trust,) if options.trust else TRUSTED:
        terms = terms_of(options, trust)
        asked = asking(argparse.Namespace(**{**vars(options), "trust": trust}))
        question = asked.question(asked.axes())
        unit = question.planned or question.unit
        if options.users is None:
            n, name, protocol = _least(question, terms, options, unit)
        else:
            n = checks.integer("--users", options.users, question.least)
            name, protocol = question.choose(n, terms)
        errors = question.errors(protocol, n)
        bound = question.bound(n, terms.epsilon, None) if terms.local else None
        if bound is not None and bound > question.error(protocol, n):
            # a biased protocol was chosen: what no unbiased one can beat says nothing of it
            bound = None
        own = _asked(name, protocol, replace(terms, delta=terms.delta_of(n)))
        rmse = errors[0][1] if len(errors) == 1 else dict(errors)
        numbers = {"users": n, "predicted_rmse": rmse, "lower_bound": bound}
        found.append({**numbers, **own, "discretisation": question.words})
    words = {"statistic": question.title, "assumes": question.assumes}
    if options.json:
        say(json.dumps(words | (found[0] if options.trust else {"plans": found})))
        return 0
    lines = [(question.title, f"predicted RMSE: privacy noise, {question.assumes}")]
    for each in found:
        lines.append((f"--trust {each['trust']}", TRUSTED[each["trust"]]))
        lines.append(("  users", f"{each['users']}"))
        rows = (
            each["predicted_rmse"]
            if len(errors) > 1
            else {"predicted RMSE": each["predicted_rmse"]}
        )
        lines += [(f"  {title}", f"{error:.3g} {unit}".strip()) for title, error in rows.items()]
        lines += (
            [("  lower bound", bounded_by(each["lower_bound"]))] if each["trust"] == "local" else []
        )
        lines += [(f"  {key}", text) for key, text in _protocol(each)[1:3]]
        lines.append(("  asked", each["discretisation"]))
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
            f"--error of --statistic {options.statistic[0]} is an error in shares of users: it must be below "
            f"{MOST_SHARE:g}, such as 0.02, not {error:g}"
        )
    n = FIRST
    for _ in range(ROUNDS):  # the best protocol depends on n
        name, protocol = question.choose(n, terms)
        last, n = n, least_users(question, protocol, error)
        if 0.8 < n / last < 1.25:
            break
    while not terms.local:  # noise that is made for n users
        name, protocol = question.choose(n, terms)
        if question.error(protocol, n) <= error:
            break
        n = math.ceil(SLOWER * n)
    return n, name, protocol


def least_users(question: Question, protocol: Asked, error: float) -> int:
    """By bisection: errors fall with n. Raises ValueError where no number of users is enough."""
    numbers = range(question.least, MOST + 1)
    place = bisect_left(numbers, True, key=lambda n: question.error(protocol, n) <= error)
    if place == len(numbers):
        raise ValueError(
            f"--error {error:g} takes more than 2^50 users; take a larger error or --epsilon"
        )
    return numbers[place]
