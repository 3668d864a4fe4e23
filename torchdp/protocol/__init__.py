"""The interface of every mechanism: users send, a channel sums or shuffles, an analyst estimates.

| noun | what it is |
|---|---|
| :class:`Protocol` | one query under one guarantee; by a curator, by one message of each user, or in rounds |
| :class:`Tally` | what the analyst needs of the users heard: named tensors and n |
| :class:`Estimate` | value, standard error, n, ``interval(level)``, ``together(level)`` |
| :class:`Crowd` | data by value and count, where these are not finitely many types |
| :class:`Choice` | candidates, the least predicted error first |

| verb | from -> to |
|---|---|
| ``randomize(x, noise=)`` | one row a user -> what these users send, for one as for a million |
| ``tally(messages)``, ``add(*tallies)`` | messages -> ``Tally`` |
| ``collect(x, noise=)`` | in distribution ``tally(randomize(x))``, never all messages at once |
| ``analyse(tally)``, ``estimate(x)`` | -> ``Estimate`` |
| ``summary(x)``, ``sample_tally``, ``sample_estimate`` | the distribution of collecting, without a message |
| ``exact(summary)``, ``predicted_mse(summary)``, ``worst_mse(n, objective)`` | the truth; squared errors |
| ``validate(x)`` | the one check of x |
| ``held`` | what one user holds: a number of types, or the shape of numbers |
| ``rows_of(x, held)`` | an array, a list, a pandas Series or DataFrame -> the tensor that the verbs make of it |
| ``X_unchecked`` | a class's implementation of the verb X, arguments already checked: from draws of any kind |
"""

from torchdp.protocol.choice import Choice
from torchdp.protocol.frames import rows_of
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
]
