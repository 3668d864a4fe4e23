"""The interface of every mechanism: users send, a channel sums or shuffles, an analyst estimates.

A :class:`Protocol` is one query under one guarantee: ``randomize(x)`` is what users send,
``tally(messages)`` what the analyst needs of them, ``collect(x)`` has the distribution of both,
``analyse(tally)`` is the :class:`Estimate`; ``sample_tally(summary)`` simulates without messages,
``exact``, ``predicted_mse`` and ``worst_mse`` are the truth and squared errors. In this order:

- ``records``: users, :class:`Crowd`, :class:`Tally`, :class:`Estimate`, what a tally can be;
- ``protocol``: the verbs, each checked once; a class writes ``X_unchecked`` of the verb X;
- ``types``: users of k types, and protocols in rounds; ``frames``: arrays and pandas tables;
- ``interval``, ``quadratic``, ``expansion``: errors that are not normal, joint covariances;
- ``simultaneous``: intervals that hold together (Sidak, 1967); ``choice``: candidates by error;
- ``rounded_sum``: a curator's Gaussian sums in whole steps, as private as real numbers.
"""

from torchdp.protocol.choice import Choice
from torchdp.protocol.frames import rows_of, sampled_rows
from torchdp.protocol.protocol import CuratorProtocol, MessageProtocol, Protocol, Relay
from torchdp.protocol.records import Crowd, Estimate, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.types import InteractiveProtocol, TypeProtocol

__all__ = [
    "Choice",
    "Crowd",
    "CuratorProtocol",
    "Estimate",
    "InteractiveProtocol",
    "Layout",
    "Limits",
    "MessageProtocol",
    "Objective",
    "Protocol",
    "Relay",
    "Tally",
    "TypeProtocol",
    "Users",
    "rows_of",
    "sampled_rows",
]
