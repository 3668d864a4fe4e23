"""``torchdp estimate --plan``: how many users a standard error takes, before there is any data."""

import argparse
import json
from typing import Any

from torchdp import checks
from torchdp.cli.questions import Asked, Question, bounded_by
from torchdp.cli.statistics import asking
from torchdp.text import aligned, say

FIRST, ROUNDS, MOST = 10_000, 4, 2**50


def plan(options: argparse.Namespace, epsilon: float) -> int:
    """Prints the least number of users whose predicted error is at most --plan."""
    error = checks.positive("--plan", options.plan)
    for name in ("csv", "group", "seed"):
        if getattr(options, name) is not None:
            raise ValueError(f"--plan takes no --{name}: it is made without any data; leave one of them out")
    if options.population:
        raise ValueError("--plan takes no --population: its error is that of the privacy noise")
    if options.bounds_from_data:
        raise ValueError("--plan takes no --bounds-from-data: it is made without any data; state --bounds")
    asked = asking(options)
    question = asked.question(asked.axes())
    n = FIRST
    for _ in range(ROUNDS):  # the best protocol depends on n
        name, protocol = question.choose(options.protocol, n, epsilon)
        last, n = n, least_users(question, protocol, error)
        if 0.8 < n / last < 1.25:
            break
    result: dict[str, Any] = {
        "statistic": question.title,
        "users": n,
        "predicted_rmse": question.error(protocol, n),
        "lower_bound": question.bound(n, epsilon, None),
        "protocol": name,
        "bits_per_user": protocol.bits_per_user,
        "epsilon": protocol.guarantee.epsilon,
        "guarantee": f"{protocol.guarantee} (neighbours: {protocol.guarantee.neighbours.value})",
        "assumes": question.assumes,
        "discretisation": question.words,
    }
    rmse = f"{result['predicted_rmse']:.3g} {question.unit}".strip()
    lines = [
        (question.title, question.words),
        ("users", f"{n}"),
        ("predicted RMSE", f"{rmse} (privacy noise, {question.assumes})"),
        ("lower bound", bounded_by(result["lower_bound"])),
        ("protocol", f"{name}, {protocol.bits_per_user} bits for each user"),
        ("guarantee", result["guarantee"]),
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
