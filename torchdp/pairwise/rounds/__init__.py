"""Protocols in rounds: noisy vectors first, then answers to public questions about them.

>>> import torch
>>> from torchdp.pairwise import TwoRound, unequal
>>> protocol = TwoRound.tuned(unequal(3), 1000, epsilon=1.0)
>>> first = protocol.round(()).collect(torch.arange(1000) % 3)
>>> second = protocol.round((first,)).collect(torch.arange(1000) % 3)
>>> protocol.analyse(protocol.joined((first, second))).n
1000

Each round is a local protocol of its own, a public function of the tallies before it.
"""

from torchdp.pairwise.rounds.choose import choose_rounds
from torchdp.pairwise.rounds.round import Question, Round
from torchdp.pairwise.rounds.three_round import ProjectedTwoRound, ThreeRound
from torchdp.pairwise.rounds.two_round import TwoRound

__all__ = [
    "ProjectedTwoRound",
    "Question",
    "Round",
    "ThreeRound",
    "TwoRound",
    "choose_rounds",
]
