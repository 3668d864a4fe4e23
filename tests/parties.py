"""A session whose parties are all here, each with its own key file: for tests of keys, roles and
kills.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

import torch
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from torchdp import secure
from torchdp.noise import SeededNoise

# of a frame, the tag with its nonce: anybody can count them
HEADER_BYTES = 62
NONCE_BYTES = 12
TAG_BYTES = 28
SIZES = {
    "north": 3,
    "south": 10,
    "east": 1,
    "west": 6,
}
SERVERS = ("server-0", "server-1", "server-2")


def links_of(servers, secret):
    """Each server's and the analyst's links; the same for the same secret."""
    names = [*(f"server {k}" for k in range(servers)), "analyst"]
    key = lambda *ends: hashlib.sha256(secret + repr(sorted(ends)).encode()).digest()  # noqa: E731
    return {a: secure.Links({b: key(a, b) for b in names if b != a}) for a in names}


def rows(n, d, bound=1.0):
    """Rows of norm below the bound, each its own."""
    values = torch.linspace(-1, 1, n * d, dtype=torch.float64)
    x = values.view(n, d).roll(1, 0)
    return x * (0.9 * bound / d**0.5)


@dataclass
class Parties:
    """Keys in ``folder``/keys, the session's files in ``folder``/session."""

    question: object
    x: torch.Tensor
    folder: Path
    sizes: dict = field(default_factory=lambda: dict(SIZES))
    servers: tuple = SERVERS

    def __post_init__(self):
        self.at = self.folder / "session"
        names = [*self.servers, *self.sizes, "analyst"]
        (self.folder / "keys").mkdir(parents=True)
        secure.new_keys(self.folder / "keys", *names)
        self.session = self.opened(self.question)
        self.question = self.session.question
        secure.open_session(self.at, self.session)
        for name in names:
            self.key(name).join(secure.read_session(self.at), self.session.fingerprint)

    def key(self, name):
        return secure.KeyFile(self.folder / "keys" / f"{name}.key")

    def opened(self, question):
        """A session of these parties."""

        def party(name):
            return secure.Party(name, self.key(name).public, self.sizes.get(name, 0))

        servers = [party(name) for name in self.servers]
        organisations = [party(name) for name in self.sizes]
        return secure.Session(question, servers, organisations, party("analyst"))

    def part(self, name):
        """An organisation's rows."""
        place = list(self.sizes).index(name)
        first = sum(list(self.sizes.values())[:place])
        return self.x[first : first + self.sizes[name]]

    def submit(self, *names, noise=True):
        for name in names or self.sizes:
            secure.submit(
                self.at,
                self.key(name),
                self.part(name),
                noise=SeededNoise(len(name)) if noise else None,
            )

    def serve(self, rounds=2):
        """Servers in turn, each as far as it gets before it waits for another."""
        for name in self.servers * rounds:
            try:
                secure.serve(self.at, self.key(name))
            except TimeoutError as wait:
                if ".roll is not there yet" not in str(wait):
                    raise

    def release(self):
        return secure.release(self.at, self.key("analyst"))

    def alone(self, *names):
        """What one process makes of the rows of these organisations, from the same sources."""
        sent = [
            self.question.randomize(
                self.part(party.name),
                first=self.session.first(party),
                noise=SeededNoise(len(party.name)),
            )
            for party in self.session.organisations
            if party.name in (names or self.sizes)
        ]
        tallies = map(self.question.tally, sent)
        return self.question.analyse(self.question.add(*tallies))


def ladder(scalar, point):
    """X25519 of RFC 7748, section 5, in Python's integers."""
    p = 2**255 - 19
    k = int.from_bytes(scalar, "little")
    k = (k & ~7 & (2**255 - 1)) | 2**254
    u = int.from_bytes(point, "little") & (2**255 - 1)
    a = 1
    b = 0
    c = u
    d = 1
    for bit in reversed(range(255)):
        if k >> bit & 1:
            a, b, c, d = c, d, a, b
        plus = (a + b) ** 2
        minus = (a - b) ** 2
        e = plus - minus
        cross = (c - d) * (a + b)
        other = (c + d) * (a - b)
        c = (cross + other) ** 2 % p
        d = u * (cross - other) ** 2 % p
        a = plus * minus % p
        b = e * (plus + 121665 * e) % p
        if k >> bit & 1:
            a, b, c, d = c, d, a, b
    return (a * pow(b, p - 2, p) % p).to_bytes(32, "little")


def hkdf(salt, secret, info):
    """The first 32 bytes of RFC 5869 with SHA-256."""
    return hmac.digest(
        hmac.digest(salt, secret, hashlib.sha256),
        info + b"\1",
        hashlib.sha256,
    )


def opened(key, frame):
    """The words of a frame by code of its own, for whoever has the key. Raises InvalidTag."""
    front = frame[:HEADER_BYTES]
    body = frame[HEADER_BYTES:-NONCE_BYTES]
    nonce = frame[-NONCE_BYTES:]
    cipher = ChaCha20Poly1305(hmac.digest(key, b"frame", "sha256"))
    return torch.frombuffer(bytearray(cipher.decrypt(nonce, body, front)), dtype=torch.int64)


def changed(frame, chance):
    """The frame with one to three bits flipped, or shortened, or lengthened."""
    kind = chance.randrange(5)
    if kind == 0:
        return frame[: chance.randrange(len(frame))]
    if kind == 1:
        return frame + bytes(chance.randrange(1, 9))
    out = bytearray(frame)
    for bit in chance.sample(range(8 * len(frame)), chance.randrange(1, 4)):
        out[bit // 8] ^= 1 << (bit % 8)
    return bytes(out)
