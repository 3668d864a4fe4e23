"""Which reports are best where their histogram is fitted: errors simulated on a public prior, or on a public family."""

import itertools
import math
from contextlib import suppress

import torch
from torch import Tensor

from torchdp.protocol import Choice, Objective
from torchdp.protocol.choice import Candidate
from torchdp.queries.fit import FittedOracle
from torchdp.queries.oracle import OracleQueries
from torchdp.queries.protocol import QueryProtocol
from torchdp.randomizers import ShiftStrategy, StrategyMatrix
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomizers.alphabet.translates import FACTORED
from torchdp.randomness import keyed_generator

TRIED, WORSE = 3, 1.5  # oracles of the unbiased choice, and their errors over that of the best oracle
DRAWS, PRIOR_DRAWS, NEAR = 8, 64, 0.02  # tallies of each public histogram; of a prior; errors that are alike
WAVES = 8  # of a smooth histogram's logarithm
FEW = 0.1  # shape of the gamma variables of a histogram of few frequent types
SLACK = 1e-9  # of messages that say nothing
Named = tuple[str, FrequencyOracle]


def fitted_choice(
    choice: Choice[QueryProtocol], n: int, objective: Objective, prior: Tensor | None, ordered: bool
) -> Choice[QueryProtocol]:
    """The oracles of an unbiased choice, and others that are meant for fits, by the error of the fitted answers."""
    every = ((one.name, one.protocol, one.error) for one in choice.candidates)
    asked = [(name, p, error) for name, p, error in every if isinstance(p, OracleQueries)]
    if not asked:  # one type
        return choice
    _, first, least = asked[0]
    W, usual = first.workload, [(name, p.client) for name, p, error in asked[:TRIED] if error <= WORSE * least]
    meant = _meant(W, n, first.client.epsilon) if ordered and W.shape[1] > 2 else []
    shapes = family(W.shape[1], W.device) if prior is None else prior[None]
    draws, found = DRAWS if prior is None else PRIOR_DRAWS, []
    for name, client in [*usual, *meant, *_halved(W, usual, meant)]:
        protocol = FittedOracle(W, client, ordered)
        errors = [math.sqrt(float(objective.of(each))) for each in protocol.simulated(n * shapes, draws)]
        error = math.exp(sum(math.log(max(each, 1e-300)) for each in errors) / len(errors))
        found.append(Candidate(name, protocol, error, f"{min(errors):.4g} to {max(errors):.4g}"))
    return Choice(tuple(found), choice.bound, NEAR)


def _meant(W: Tensor, n: int, epsilon: float) -> list[Named]:
    """The square wave, and shifts of least posterior variance under a rough prior."""
    k, found = W.shape[1], list[Named]()
    if SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        with suppress(ValueError):  # these reports can not tell all types apart
            found.append(("square wave", ShiftStrategy.square_wave(k, epsilon)))
    if found and k <= FACTORED:
        with suppress(ValueError):
            generator = keyed_generator(b"fitted", W.device)
            tuned = ShiftStrategy.tuned(W, epsilon, generator=generator, users=n)
            found.append(("shift strategy for fits", tuned))
    return found


def _halved(W: Tensor, usual: list[Named], meant: list[Named]) -> list[Named]:
    """Half of the messages by the best oracle whose messages are listed, half by the square wave: a hedge.

    Fisher informations add up: on every shape its error is near the lower of the two, at most 2^(1/2) times that.
    """
    types = torch.arange(W.shape[1], device=W.device)
    for (name, one), (other, two) in itertools.product(usual, meant):
        if one.k <= FACTORED and one.entry_variance is None:
            Q = torch.cat([one.laws(types), two.laws(types)], 1).mT / 2
            made = StrategyMatrix((1 - SLACK) * Q + SLACK / len(Q))  # rounding must not add to epsilon
            return [(f"{name} or {other}", made)]
    return []


def family(k: int, device: torch.device) -> Tensor:
    """Eight public histograms of k ordered types, (8, k): smooth ones, few frequent types, and both at once."""
    generator = keyed_generator(b"histograms", device)
    place = (torch.arange(k, dtype=torch.float64, device=device) + 0.5) / k
    waves = torch.arange(1, WAVES + 1, dtype=torch.float64, device=device)
    heights = torch.randn(4, WAVES, dtype=torch.float64, device=device, generator=generator) / waves
    size = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64, device=device)
    smooth = torch.softmax(size * heights @ torch.cos(torch.pi * waves[:, None] * place), -1)
    steep = torch.rand(3, k, dtype=torch.float64, device=device, generator=generator) ** (1 / FEW)
    few = steep / steep.sum(-1, keepdim=True)
    return torch.cat([smooth, few, (smooth[-1:] + few[:1]) / 2])
