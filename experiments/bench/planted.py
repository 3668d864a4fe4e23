"""Mistakes for ``battery.py``: what the code says, what a mistaken author would have written, who should see it."""

from typing import NamedTuple


class Mistake(NamedTuple):
    file: str  # under torchdp/
    what: str
    right: str
    wrong: str
    tests: str  # under tests/
    entry: str  # of the battery: the class in that file
    seen: bool = True  # by the battery


MISTAKES = (
    Mistake(
        "protocol/types.py", "a message that no user sends is taken",
        'checks.indices("data", wire.unpack(data, self.bits_per_user), self.outputs)',
        "wire.unpack(data, self.bits_per_user)",
        "protocol/test_own_protocol.py", "TestPrivateCDF", False,
    ),
    Mistake(
        "protocol/message.py", "the users of a second tally are not counted",
        "            n += each.n\n", "",
        "protocol/test_own_protocol.py", "TestPrivateCDF",
    ),
    Mistake(
        "protocol/types.py", "the sampler repeats one draw",
        "[self.hear(x, draws) for _ in range(math.prod(shape))]", "[self.hear(x, draws)] * math.prod(shape)",
        "protocol/test_own_protocol.py", "TestPrivateCDF",
    ),
    Mistake(
        "protocol/records.py", "an interval of half the width",
        "self.standard_error.square()", "(self.standard_error / 2).square()",
        "protocol/test_own_protocol.py", "TestPrivateCDF",
    ),
)  # fmt: skip
