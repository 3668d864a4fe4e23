"""``torchdp estimate``: a statistic of a table, of each of its groups, or the number of users that it takes."""

import argparse
import json
import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchdp import checks
from torchdp.cli.questions import Answer, Asked, Question, bounded_by
from torchdp.cli.statistics import SHARE, asking
from torchdp.cli.table import read_users
from torchdp.noise import Noise, SeededNoise
from torchdp.protocol.records import single
from torchdp.text import aligned, say, shown

FIRST, ROUNDS, MOST = 10_000, 4, 2**50  # users, of a plan
MOST_SHARE = 0.5  # an error of shares that says nothing


@dataclass(frozen=True)
class Heard:
    """What was said of one group: its name, the users, the answers, what no unbiased protocol's error is below."""

    group: str
    users: int
    answers: list[Answer]
    bound: float | None


def estimate(options: argparse.Namespace) -> int:
    """Reads, randomizes every row, prints.

    The answer depends on the rows through the messages and their number alone (unless --bounds-from-data is
    given); an error about a cell names its row, never its value.
    """
    epsilon = checks.positive("--epsilon", options.epsilon)
    if 1 < options.level < 100:
        raise ValueError(f"--level must be a fraction below 1: did you mean {options.level / 100:g}?")
    checks.fraction("--level", options.level)
    if options.plan is not None:
        return plan(options, epsilon)
    if options.csv is None:
        raise ValueError(
            "--csv FILE is needed: the table to estimate from (or --plan ERROR, for a plan without one)"
        )
    noise = None if options.seed is None else SeededNoise(checks.integer("--seed", options.seed, 0))
    question, parts, notes = ask(options, noise)
    name, protocol = question.choose(
        options.protocol, sum(len(types) for _, types in parts) // len(parts), epsilon
    )
    heard = [Heard(group, len(types), *_hear(question, protocol, types, noise, options)) for group, types in parts]
    if options.bounds_from_data:
        notes.append("the bounds were read from the data: this run is NOT PRIVATE")
    if options.seed is not None:
        notes.append("noise from a stated seed can be removed: for trying out only")
    say(*(f"torchdp estimate: {note}" for note in notes), error=True)
    result = {
        "statistic": question.title,
        "discretisation": question.words,
        "level": options.level,
        "error_of": "privacy noise and sampling from a population" if options.population else "privacy noise",
        **_asked(name, protocol, epsilon),
        "source": protocol.guarantee.source,
    }
    say(*([json.dumps(_record(result, heard))] if options.json else _table(result, heard, question.unit)))
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
    places = {"": range(len(users))} if options.group is None else users.groupby(options.group).indices
    found = []
    for name, where in places.items():
        if len(where) >= question.least:
            found.append((str(name), types[where]))
        elif options.group is not None:
            notes.append(f"group {name!r} is left out: it has {len(where)} users, {question.least} are needed")
    if not found:
        raise ValueError(
            f"--csv holds {len(users)} rows to ask; this statistic needs at least {question.least} users"
        )
    return question, found, notes


def _hear(
    question: Question, protocol: Asked, types: Tensor, noise: Noise | None, options: argparse.Namespace
) -> tuple[list[Answer], float | None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tally = protocol.collect(types, noise=noise)
        answers = question.answers(protocol, tally, options.level, options.population)
    for each in caught:
        if issubclass(each.category, UserWarning):  # torchdp's own
            say(f"torchdp estimate: {each.message}", error=True)
    if not all(each.finite for each in answers):
        raise ValueError("the messages give no finite estimate: one class looks empty, or --epsilon is too small")
    shares = question.shares(protocol, tally)
    return answers, None if shares is None else question.bound(single(tally.n), options.epsilon, shares)


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
        lines += [("answer", f"estimate, {level}, +- predicted RMSE {unit}".strip() + f" ({result['error_of']})")]
        for each in heard:
            lines += [(f"{shown(each.group)}: {each.users} users", "")] if each.group else []
            lines += [("  " + one.name, _line(one)) for one in each.answers]
            lines += [("  lower bound", _bound(each, result))]
    return aligned([*lines, *_protocol(result), ("source", result["source"])])


def _asked(name: str, protocol: Asked, epsilon: float) -> dict[str, Any]:
    """What each user sends, and what it costs: an optimised protocol may spend less than was stated."""
    guarantee = protocol.guarantee
    said = str(guarantee)
    spent = f"epsilon = {guarantee.epsilon:g}"
    stated = f"epsilon = {epsilon:g}"
    if spent != stated:
        before, _, after = said.partition(spent)
        said = f"{before.removesuffix('exactly ')}{stated} (spent: {guarantee.epsilon:g}){after}"
    return {
        "protocol": name,
        "bits_per_user": protocol.bits_per_user,
        "epsilon": guarantee.epsilon,
        "guarantee": f"{said} (neighbours: {guarantee.neighbours.value})",
    }


def _protocol(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("protocol", f"{result['protocol']}, {result['bits_per_user']} bits for each user"),
        ("guarantee", result["guarantee"]),
    ]


def _bound(each: Heard, result: dict[str, Any]) -> str:
    if each.bound is None:
        return bounded_by(None)
    several = len(each.answers) > 1
    which = " of the AUC" if any(one.p_value is not None for one in each.answers) else ", root mean square"
    noise = ", of the noise alone" if "population" in result["error_of"] else ""
    return bounded_by(each.bound) + (which if several else "") + noise + ", at the estimated histogram"


def _line(one: Answer) -> str:
    low, high = one.interval
    test = "" if one.p_value is None else f"  p = {one.p_value:.3g} {one.words}"
    return f"{one.value:<10.6g}  [{low:.6g}, {high:.6g}]  +- {one.error:.3g}{test}"


def plan(options: argparse.Namespace, epsilon: float) -> int:
    """Prints the least number of users whose predicted error is at most --plan."""
    error = checks.positive("--plan", options.plan)
    for name in ("csv", "group", "seed", "population", "bounds_from_data"):
        if getattr(options, name) not in (None, False):
            raise ValueError(
                f"--plan takes no --{name.replace('_', '-')}: it is made without any data, for the privacy noise alone"
            )
    asked = asking(options)
    question = asked.question(asked.axes())
    unit = question.planned or question.unit
    if unit == SHARE and error >= MOST_SHARE:
        raise ValueError(
            f"--plan of --statistic {options.statistic} is an error in shares of users: it must be below "
            f"{MOST_SHARE:g}, such as 0.02, not {error:g}"
        )
    n = FIRST
    for _ in range(ROUNDS):  # the best protocol depends on n
        name, protocol = question.choose(options.protocol, n, epsilon)
        last, n = n, least_users(question, protocol, error)
        if 0.8 < n / last < 1.25:
            break
    predicted, bound = question.error(protocol, n), question.bound(n, epsilon, None)
    if bound is not None and bound > predicted:
        bound = None  # a biased protocol was chosen: what no unbiased one can beat says nothing of it
    result: dict[str, Any] = {
        "statistic": question.title,
        "users": n,
        "predicted_rmse": predicted,
        "lower_bound": bound,
        **_asked(name, protocol, epsilon),
        "assumes": question.assumes,
        "discretisation": question.words,
    }
    rmse = f"{result['predicted_rmse']:.3g} {unit}".strip()
    lines = [
        (question.title, question.words),
        ("users", f"{n}"),
        ("predicted RMSE", f"{rmse} (privacy noise, {question.assumes})"),
        ("lower bound", bounded_by(result["lower_bound"])),
        *_protocol(result),
    ]
    say(*([json.dumps(result)] if options.json else aligned(lines)))
    return 0


def least_users(question: Question, protocol: Asked, error: float) -> int:
    """By bisection: errors fall with n. Raises ValueError where no number of users is enough."""
    low, high = question.least - 1, question.least
    while question.error(protocol, high) > error:
        low, high = high, 2 * high
        if high > MOST:
            raise ValueError(f"--plan {error:g} takes more than 2^50 users; take a larger error or --epsilon")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if question.error(protocol, middle) > error else (low, middle)
    return high
