"""Messages that arrive in batches, for every protocol of the local model; two groups compared.

>>> import torch
>>> from torchdp.collection import Collection
>>> from torchdp.pairwise import unequal
>>> from torchdp.queries import LocalFactorization
>>> protocol = LocalFactorization.of(unequal(3), 1.0)
>>> x = torch.tensor([0, 2, 1, 1])
>>> votes = Collection.of(protocol).add("monday", protocol.tally(protocol.randomize(x)))
>>> votes.estimate().n
4

A batch has a name and counts once, however often it is sent. Only messages in the local model can
be collected in parts: in the shuffle model a part of the users has a weaker guarantee. A protocol
in rounds takes one journal for each round. To be read in this order:

* ``collection``: ``Collection``, a value in memory; its ``sequence`` of intervals that hold at all
  times at once, Robbins (1970), Howard, Ramdas, McAuliffe, Sekhon (2021).
* ``journal``: ``Journal``, the same in one SQLite file, which any number of threads and processes
  fill at once.
* ``comparison``: ``compare`` and ``difference`` of two groups' estimates, with p-values of their
  populations; Sidak (1967) for all answers together.
"""

from torchdp.collection.collection import Collection
from torchdp.collection.comparison import compare, difference
from torchdp.collection.journal import Journal

__all__ = ["Collection", "Journal", "compare", "difference"]
