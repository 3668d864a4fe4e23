"""The rules of participation in their own words, for the tests of training."""

from itertools import combinations, pairwise

from torchdp.training import Epochs


def permits(rule, steps):
    """Whether one user may enter these steps, a list in order."""
    if isinstance(rule, Epochs):
        return len({step % rule.period for step in steps}) <= 1
    return len(steps) <= rule.times and all(b - a >= rule.gap for a, b in pairwise(steps))


def permitted(rule, steps):
    """Every set of at least one of the first ``steps`` steps that the rule allows."""
    found = []
    for size in range(1, steps + 1):
        sets = map(list, combinations(range(steps), size))
        found += [chosen for chosen in sets if permits(rule, chosen)]
    return found
