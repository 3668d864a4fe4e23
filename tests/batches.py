"""A batch and its loop: summaries side by side, the draws of a loop's turns, and how far two
answers are apart.
"""

import math

import torch

from torchdp.draws import Draws, Simulated
from torchdp.protocol import Crowd, Tally
from torchdp.regression import SecondMoments

ULP = 2.0**-52


class Ragged(Exception):
    """Draws that can not be laid side by side."""


class Stacked(Draws):
    """Draws of a loop's turns laid side by side: a batch that asks in their order gets the loop's
    own numbers.

    Only where each turn asks for as many numbers, whatever was drawn before.
    """

    def __init__(self, turns: int) -> None:
        generators = [torch.Generator().manual_seed(turn) for turn in range(turns)]
        self.each = [Simulated(generator) for generator in generators]
        self.device = self.each[0].device

    def fill(self, words):
        for draws, part in zip(self.each, words.view(len(self.each), -1), strict=True):
            draws.fill(part)

    def kernel_key(self):
        return None

    def beside(self, name, shape, **own):
        size, rest = divmod(math.prod(shape), len(self.each))
        if rest:
            raise Ragged("the turns ask for different numbers of draws")
        drawn = [getattr(draws, name)((size,), **own) for draws in self.each]
        return torch.cat(drawn).view(shape)

    def words(self, shape):
        return self.beside("words", shape)

    def integers(self, shape):
        return self.beside("integers", shape)

    def uniform(self, shape):
        return self.beside("uniform", shape)

    def exponential(self, shape):
        return self.beside("exponential", shape)

    def normal(self, shape, dtype=torch.float64):
        return self.beside("normal", shape, dtype=dtype)

    def gamma(self, shape):
        parts = zip(self.each, shape.reshape(len(self.each), -1), strict=True)
        return torch.cat([draws.gamma(part) for draws, part in parts]).view(shape.shape)

    def poisson(self, rate):
        parts = zip(self.each, rate.reshape(len(self.each), -1), strict=True)
        return torch.cat([draws.poisson(part) for draws, part in parts]).view(rate.shape)

    def binomial(self, counts, probability):
        chance = torch.as_tensor(probability, dtype=torch.float64)
        counts, chance = torch.broadcast_tensors(counts, chance)
        rows = [x.reshape(len(self.each), -1) for x in (counts, chance)]
        parts = zip(self.each, *rows, strict=True)
        return torch.cat([draws.binomial(*part) for draws, *part in parts]).view(counts.shape)


def turns_of(summary, alike=False):
    """Three summaries of other users like this one; alike: of as many, where a protocol is made for
    their number.
    """
    if isinstance(summary, Crowd):
        m = 0 if alike else torch.arange(1, len(summary.counts) + 1)
        first = Crowd(summary.values.flip(0), summary.counts + m)
        return [
            summary,
            first,
            Crowd(summary.values, summary.counts.roll(1) if alike else 3 * summary.counts),
        ]
    if isinstance(summary, SecondMoments):
        return [SecondMoments(summary.n, summary.matrix / each) for each in (1, 2, 3)]
    if isinstance(summary, Tally):
        return [
            Tally(summary.n, {name: part / each for name, part in summary.parts.items()})
            for each in (1, 2, 3)
        ]
    if alike:
        return [summary, summary.roll(1), summary.flip(0)]
    return [summary, summary.roll(1) + torch.arange(1, summary.shape[-1] + 1), 3 * summary]


def batch_of(turns, axis=0):
    """Summaries or tallies as one, the batch in this dimension of parts: 1 behind one of
    repetitions.
    """
    first = turns[0]
    if isinstance(first, Crowd):
        return Crowd(
            *(torch.stack([getattr(one, name) for one in turns]) for name in ("values", "counts"))
        )
    if isinstance(first, torch.Tensor):
        return torch.stack(turns)
    held = first.matrix if isinstance(first, SecondMoments) else next(iter(first.parts.values()))
    n = torch.tensor([one.n for one in turns], dtype=torch.int64, device=held.device)
    if isinstance(first, SecondMoments):
        return SecondMoments(n, torch.stack([one.matrix for one in turns]))
    return Tally(n, {name: torch.stack([one[name] for one in turns], axis) for name in first.parts})


def apart(batch, turns, axis=0):
    """The largest distance in units in the last place of the largest entry of each turn's
    answer.
    """
    loop = torch.stack(turns, axis).double()
    assert batch.shape == loop.shape, (batch.shape, loop.shape)
    same = (batch == loop) | (batch.isnan() & loop.isnan())
    # the largest number of each turn
    size = loop.abs()
    if loop.ndim > axis + 1:
        size = loop.nan_to_num(0.0, 0.0, 0.0).abs().flatten(axis + 1).amax(-1)
    trailing = [1] * (loop.ndim - size.ndim)
    size = size.view(*size.shape, *trailing).clamp_min(1e-300)
    units = (batch.double() - loop).abs() / (size * ULP)
    return float(torch.where(same, 0.0, units).max())
