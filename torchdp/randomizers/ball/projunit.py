"""ProjUnit: PrivUnit of a random projection, so that a message is as short as one wants."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws
from torchdp.kernels.normals.reference import normals
from torchdp.privacy import Guarantee
from torchdp.protocol import Tally
from torchdp.randomizers.ball.ball import BallMoments, rows_at_once
from torchdp.randomizers.ball.logit_beta import CUT, LogitBeta
from torchdp.randomizers.ball.sphere import CapLaw, coordinate_size
from torchdp.randomizers.ball.sphere_randomizer import SphereRandomizer, lifted
from torchdp.randomizers.ball.subgaussian import Law, SubGaussian, constants, gauss_rule
from torchdp.randomizers.base import real_local

PUBLIC = 0  # key of the projections: everybody's


@dataclass(frozen=True)
class ProjUnit(SphereRandomizer):
    """For x in R^dim with ||x|| <= radius a message of k numbers, and a public random projection, with E Y = x.

    x / radius is lifted to u on the unit sphere of R^D, D = dim + 1. P is k rows of a random rotation, fresh for each
    user and public; Z is PrivUnit of P u/||P u|| in R^k, and Y = radius P^T Z/E||P u|| without its last coordinate.
    A message is the seed of P, a whole number below 2^53, and gamma Z, a unit vector of k numbers: (n, k + 1). Making P
    costs O(D k^2) for each message. P^T Z has <P^T Z, u> = R T/gamma, R = ||P u|| with R^2 ~ Beta(k/2, (D - k)/2)
    independent of PrivUnit's T, and a uniform direction across u: ``collect`` draws Y from these two, without P.
    dim >= 2; 2 <= k <= dim (keyword); epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``sample_tally`` draws dim + 1 normals for each type in a repetition, and four numbers for each of its users if
    they are fewer than a few thousand; beyond, three in all (``AxialSums.least``).

    Guarantees: exactly epsilon-LDP, for any two points of the ball, P being public.
    Source: Asi, Feldman, Nelson, Nguyen, Talwar (2023), ProjUnit; the unbiased scale 1/E||P u|| and moments: here.
    """

    k: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", checks.integer("k", self.k, 2))
        if self.k > self.dim:
            raise ValueError(f"k must be at most dim = {self.dim}, not {self.k}; use PrivUnit for whole vectors")

    @property
    def missed(self) -> float:
        """T ends at normals of chance 2^-126 on either side; directions across u do not end. At most 1.2e-16."""
        return self.cap.high_density * 2.0**-125

    @cached_property
    def cap(self) -> CapLaw:
        """The law of T in R^k."""
        return CapLaw(self.k, self.epsilon)

    @property
    def _projection(self) -> LogitBeta:
        """The law of log(R^2/(1 - R^2))."""
        return LogitBeta(self.k / 2, (self.dim + 1 - self.k) / 2)

    @cached_property
    def mean_length(self) -> float:
        """c = E ||P u||, by quadrature: ratios of Gamma functions lose digits in high dimensions."""
        length, weights = self._lengths
        return float(weights @ length)

    @property
    def bits_per_user(self) -> int:
        """The seed and k float64 numbers."""
        return 64 * (self.k + 1)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """(*batch, k + 1), float64."""
        users = x.detach().reshape(-1, self.dim).double()
        parts = [self._said(some, draws) for some in users.split(self._at_once(x))]
        return torch.cat(parts).reshape(*x.shape[:-1], self.k + 1)

    def _said(self, users: Tensor, draws: Draws) -> Tensor:
        seeds = draws.integers((len(users),)) >> 10
        scaled = users / self.radius
        u = lifted(scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(1))
        image = torch.einsum("nik,ni->nk", self._projections(seeds), u)
        axis = image / image.norm(dim=-1, keepdim=True)
        t, height = self.cap.draw((len(users),), draws)
        across = draws.normal((len(users), self.k))
        across -= (across * axis).sum(-1, keepdim=True) * axis
        z = t[:, None] * axis + (height / across.norm(dim=-1))[:, None] * across
        return torch.cat([seeds.double()[:, None], z], -1)

    def vectors(self, messages: Tensor) -> Tensor:
        """radius P^T Z/E||P u|| without its last coordinate: (*batch, k + 1) -> (*batch, dim), float64."""
        flat = messages.reshape(-1, self.k + 1)
        parts = [
            torch.einsum("nik,nk->ni", self._projections(some[:, 0].long()), some[:, 1:])
            for some in flat.split(self._at_once(messages))
        ]
        return torch.cat(parts)[:, :-1].mul_(self.radius / self._mean).reshape(*messages.shape[:-1], self.dim)

    def tally(self, messages: Tensor) -> Tally:
        """messages: (n, k + 1), seeds and unit vectors. Raises TypeError, ValueError."""
        messages = checks.floating("messages", messages).double()
        if messages.ndim != 2 or messages.shape[1] != self.k + 1:
            raise ValueError(f"messages must have shape (n, {self.k + 1}), not {tuple(messages.shape)}")
        seeds, lengths = messages[:, 0], messages[:, 1:].norm(dim=-1)
        if not bool(((seeds >= 0) & (seeds < 2**53) & (seeds == seeds.round())).all()):
            raise ValueError("messages must begin with a seed, a whole number in [0, 2^53)")
        if not bool(((lengths - 1).abs() < 1e-9).all()):
            raise ValueError(f"messages must hold unit vectors of {self.k} numbers after the seed")
        total = torch.zeros(self.dim, dtype=torch.float64, device=messages.device)
        for some in messages.split(self._at_once(messages)):
            total += self.vectors(some).sum(0)
        return Tally(len(messages), {"sum": total})

    def decode(self, data: bytes) -> Tensor:
        messages = wire.unpack_vectors(data, self.k + 1)
        try:
            self.tally(messages)
        except ValueError as error:
            raise ValueError(f"data must be what this protocol encodes: {error}") from None
        return messages

    def _projections(self, seeds: Tensor) -> Tensor:
        """P^T, (n, dim + 1, k): orthonormal columns that span a uniform subspace, a public function of the seed.

        The basis is the one whose triangular factor has a positive diagonal: the same on the user's machine and on the
        analyst's, whatever their libraries' signs.
        """
        lifted_dim = self.dim + 1
        matrices = normals(PUBLIC, seeds, lifted_dim * self.k, torch.float64).view(-1, lifted_dim, self.k)
        columns, triangle = torch.linalg.qr(matrices)
        signs = torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, triangle.new_ones(()))
        return columns * signs[:, None]

    def _at_once(self, x: Tensor) -> int:
        return rows_at_once(x, self.k * (self.dim + 1))

    @property
    def guarantee(self) -> Guarantee:
        return real_local(self.epsilon, "Asi, Feldman, Nelson, Nguyen, Talwar (2023), ProjUnit; ratio e^epsilon")

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments; with v the variance of PrivUnit in R^k, D = dim + 1 and c = E ||P u||, variance = radius^2 b.

        b = ((1 - k/D)/(D - 1) + v k/D)/c^2 across u, a = (1 + v) k/(D c^2) - 1 along it, outer = a - b.
        """
        (t, p), (length, q) = self._coordinates, self._lengths
        noise = np.multiply.outer(length, t) / (self.mean_length * self.cap.threshold) - 1
        third, fourth = (float(q @ noise**power @ p) for power in (3, 4))
        lifted_dim, v, c = self.dim + 1, self.cap.variance, self.mean_length
        along = (1 + v) * self.k / (lifted_dim * c**2) - 1
        across = ((1 - self.k / lifted_dim) / (lifted_dim - 1) + v * self.k / lifted_dim) / c**2
        return BallMoments(self.radius**2 * across, third / along**1.5, fourth / along**2, along - across)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """The larger of those along x and across it; no direction between is worse (on a grid, by the tests)."""
        (t, p), (length, q), (size, r) = self._coordinates, self._lengths, coordinate_size(self.dim)
        scale, along = self.radius / (self.mean_length * self.cap.threshold), np.multiply.outer(length, t).ravel()
        mass = np.multiply.outer(q, p).ravel()
        squares, share = gauss_rule(1 - along**2, mass, 16)  # across: a coordinate times sqrt(1 - along^2)
        across = np.multiply.outer(np.sqrt(squares), size).ravel() * scale, np.multiply.outer(share, r).ravel() / 2
        across = np.concatenate([-across[0], across[0]]), np.concatenate([across[1], across[1]])
        both = constants((along * scale - self.radius, mass)), constants(across)
        return SubGaussian(max(c.psi2 for c in both), max(c.proxy for c in both))

    @property
    def _coordinates(self) -> Law:
        """T by quadrature."""
        w, weights = self.cap.quadrature()
        return np.tanh(w / 2), weights

    @property
    def _lengths(self) -> Law:
        """||P u|| by quadrature."""
        law, mode = self._projection, np.array(self._projection.mode)
        w, weights = law.quadrature(mode - law.mirrored.tail_length(-mode, CUT), mode + law.tail_length(mode, CUT))
        return np.sqrt(expit(w)), weights

    @property
    def _along(self) -> Law:
        (t, p), (length, q) = self._coordinates, self._lengths
        return np.multiply.outer(length, t).ravel(), np.multiply.outer(q, p).ravel()

    def _draw(self, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """(R T, sqrt(1 - R^2 T^2))."""
        t, across = self.cap.draw(shape, draws)
        logit = self._projection.quantile(draws.normal(shape))
        along = t * torch.sigmoid(logit).sqrt()
        return along, (across.square() + t.square() * torch.sigmoid(-logit)).sqrt()

    @property
    def _mean(self) -> float:
        return self.mean_length * self.cap.threshold
