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
        "[protocol.hear(x, draws) for _ in range(math.prod(shape))]", "[protocol.hear(x, draws)] * math.prod(shape)",
        "protocol/test_own_protocol.py", "TestPrivateCDF",
    ),
    Mistake(
        "protocol/records.py", "an interval of half the width",
        "self.standard_error.square()", "(self.standard_error / 2).square()",
        "protocol/test_own_protocol.py", "TestPrivateCDF",
    ),
    Mistake(
        'randomizers/alphabet/randomized_response.py', 'half of epsilon is stated',
        'return exact_local(stated(self.epsilon, drawn), "Warner (1965); log p/q of the integers drawn")',
        'return exact_local(stated(self.epsilon, drawn) / 2, "Warner (1965); log p/q of the integers drawn")',
        'randomizers/test_battery.py', 'TestRandomizedResponse',
    ),
    Mistake(
        'randomizers/alphabet/randomized_response.py', 'every user draws the same integer',
        'value = draws.integers(tuple(x.shape)).div_(self._step, rounding_mode="floor")',
        'value = draws.integers((1,)).div_(self._step, rounding_mode="floor").expand(x.shape)',
        'randomizers/test_battery.py', 'TestRandomizedResponse',
    ),
    Mistake(
        'randomizers/alphabet/randomized_response.py', 'decoding forgets to subtract q',
        'return (tally["reports"].double() - tally.n * self._q) / self._kept',
        'return tally["reports"].double() / self._kept',
        'randomizers/test_battery.py', 'TestRandomizedResponse',
    ),
    Mistake(
        'randomizers/alphabet/bit_vectors.py', 'the variances of own and other bits swapped',
        'return self.on * self.lost / self.gap**2, self.off * (1 - self.off) / self.gap**2',
        'return self.off * (1 - self.off) / self.gap**2, self.on * self.lost / self.gap**2',
        'randomizers/test_battery.py', 'TestOptimizedUnaryEncoding',
    ),
    Mistake(
        'randomizers/alphabet/bit_vectors.py', 'encode loses the bits of the second byte',
        'return ((rows[..., None] >> shifts) & 255).flatten(1)[:, :size].to(torch.uint8).numpy().tobytes()',
        'return ((rows[..., None] >> shifts) & 15).flatten(1)[:, :size].to(torch.uint8).numpy().tobytes()',
        'randomizers/test_battery.py', 'TestOptimizedUnaryEncoding',
    ),
    Mistake(
        'randomizers/alphabet/subset_selection.py', 'a bit of chance too much for the own type',
        'return at_least((self.k - w) / (w * exponential(self.epsilon) + self.k - w))',
        'return at_least((self.k - w) / (w * exponential(1.1 * self.epsilon) + self.k - w))',
        'randomizers/test_battery.py', 'TestSubsetSelection',
    ),
    Mistake(
        'randomizers/alphabet/hadamard_response.py', 'types are off by one in the transform',
        'return self._scale * walsh_hadamard(tally["reports"].double())[..., 1 : self.k + 1]',
        'return self._scale * walsh_hadamard(tally["reports"].double())[..., : self.k]',
        'randomizers/test_battery.py', 'TestHadamardResponse',
    ),
    Mistake(
        'randomizers/alphabet/hadamard_response.py', 'the lowest bit of y, not of the row, is flipped',
        'torch.where((popcount(row & y) & 1) == wanted, y, y ^ (row & -row))',
        'torch.where((popcount(row & y) & 1) == wanted, y, y ^ 1)',
        'randomizers/test_battery.py', 'TestHadamardResponse',
    ),
    Mistake(
        'randomizers/alphabet/frequency.py', 'shares of n - 1 users',
        'value = self.totals(tally) / tally.n\n',
        'value = self.totals(tally) / (tally.n - 1)\n',
        'randomizers/test_battery.py', 'TestRandomizedResponse',
    ),
    Mistake(
        'randomizers/alphabet/frequency.py', 'the standard error is a variance',
        '(self.report_variance(shares) / tally.n).sqrt()',
        '(self.report_variance(shares) / tally.n)',
        'randomizers/test_battery.py', 'TestRandomizedResponse',
    ),
    Mistake(
        'randomizers/ball/privunitg.py', 'the sampler forgets the threshold',
        'return gaussian_sums(points, along, counts, shape, draws) / self.tau.threshold',
        'return gaussian_sums(points, along, counts, shape, draws)',
        'randomizers/test_battery.py', 'TestPrivUnitG',
    ),
    Mistake(
        'randomizers/ball/ball.py', 'the sampler takes one user of each point',
        'along @ axes + draws.normal((*shape, axes.shape[-1])) @ spread.mT',
        'along @ axes + draws.normal((*shape, axes.shape[-1])) @ spread.mT / 2',
        'randomizers/test_battery.py', 'TestPrivUnitG',
    ),
    Mistake(
        'randomizers/ball/ball.py', 'a 5 % error in the noise along x',
        'squares = counts @ summary.values.double().square() / counts.sum()',
        'squares = 1.05 * counts @ summary.values.double().square() / counts.sum()',
        'randomizers/test_battery.py', 'TestPrivUnit', False,
    ),
    Mistake(
        'randomizers/ball/ball.py', 'points outside of the ball pass',
        'if largest > self.radius * (1 + 4 * math.sqrt(self.dim) * torch.finfo(x.dtype).eps):',
        'if largest > 9 * self.radius:',
        'randomizers/test_battery.py', 'TestPrivUnitG',
    ),
    Mistake(
        'mean/central.py', 'noise for half the diameter',
        'return self.multiplier * self.encoding.diameter\n',
        'return self.multiplier * self.encoding.diameter / 2\n',
        'mean/test_contract.py', 'TestGaussianMean',
    ),
    Mistake(
        'mean/central.py', 'the total without its noise',
        'self.deviation * draws.normal((*shape, len(total)))',
        '0 * draws.normal((*shape, len(total)))',
        'mean/test_contract.py', 'TestGaussianMean',
    ),
    Mistake(
        'mean/protocol.py', 'the centre is left out',
        'value = self.encoding.centre + total / n @ self.shape.root.mT',
        'value = total / n @ self.shape.root.mT',
        'mean/test_contract.py', 'TestGaussianMean',
    ),
    Mistake(
        'mean/covariance.py', 'no correction for the noise of the mean',
        'correction = deviation**2 * torch.eye(len(self.root.mT)).to(S)',
        'correction = 0 * torch.eye(len(self.root.mT)).to(S)',
        'mean/test_contract.py', 'TestGaussianCovariance',
    ),
    Mistake(
        'mean/covariance.py', 'the cross term of the variance once, not twice',
        'cross = cross + 2 * off',
        'cross = cross + off',
        'mean/test_contract.py', 'TestGaussianCovariance',
    ),
    Mistake(
        'mean/moments.py', 'even powers take the sensitivity of odd ones halved',
        'apart = 2.0 if self.order % 2 else',
        'apart = 1.0 if self.order % 2 else',
        'mean/test_contract.py', 'TestGaussianMoments',
    ),
    Mistake(
        'mean/local.py', 'what is shown is a tenth shorter',
        'return self.encoding(x)',
        'return 0.9 * self.encoding(x)',
        'mean/test_contract.py', 'TestLocalMean',
    ),
    Mistake(
        'secure/protocol.py', 'signs are left out of the words',
        'signs = self.sketch.rows[:, part], self.sketch.signs[:, part]',
        'signs = self.sketch.rows[:, part], self.sketch.signs[:, part].abs()',
        'secure/test_protocol.py', 'TestSecureSketch', False,
    ),
    Mistake(
        'secure/protocol.py', 'rows above the bound pass',
        '<= self.bound * (1 + SLACK)).all())',
        '<= 2 * self.bound * (1 + SLACK)).all())',
        'secure/test_protocol.py', 'TestSecureSketch',
    ),
    Mistake(
        'secure/protocol.py', 'the second part of the users has the first noise',
        'return self.speak(x, source(noise, x.device), first)',
        'return self.speak(x, source(noise, x.device), 0)',
        'secure/test_protocol.py', 'TestSecureSketch', False,
    ),
    Mistake(
        'pairwise/messages.py', 'the square of the noise is not taken off',
        '(form.weights * (tally["sum"].square() / n**2 - v / n)).sum(-1)',
        '(form.weights * tally["sum"].square() / n**2).sum(-1)',
        'pairwise/test_battery.py', 'TestOneMessage',
    ),
    Mistake(
        'pairwise/messages.py', 'the linear term of the variance twice, not four times',
        'return 4 * v * squares / n**3 + 2 * v**2 *',
        'return 2 * v * squares / n**3 + 2 * v**2 *',
        'pairwise/test_battery.py', 'TestOneMessage',
    ),
    Mistake(
        'pairwise/messages.py', 'each of two messages takes the whole budget',
        'return PrivUnitG(self.statistic.dim, self.epsilon / 2, self.statistic.radius)',
        'return PrivUnitG(self.statistic.dim, self.epsilon, self.statistic.radius)',
        'pairwise/test_battery.py', 'TestTwoMessage',
    ),
    Mistake(
        'queries/local.py', 'the shift of the factors is forgotten',
        'self.check(tally)["sum"] / tally.n @ self.queries.left.mT + self.queries.shift',
        'self.check(tally)["sum"] / tally.n @ self.queries.left.mT',
        'queries/test_contract.py', 'TestLocalFactorization',
    ),
    Mistake(
        'queries/local.py', 'the variance without the left factor squared',
        'square = self.queries.left.square().sum(1, keepdim=True)',
        'square = self.queries.left.abs().sum(1, keepdim=True)',
        'queries/test_contract.py', 'TestLocalFactorization',
    ),
    Mistake(
        'shuffle/response.py', 'flips are not undone in scale',
        'return (total.double() - n * self.flip) / (1 - 2 * self.flip)',
        'return (total.double() - n * self.flip) / (1 - self.flip)',
        'shuffle/test_sums.py', 'TestResponse',
    ),
    Mistake(
        'shuffle/response.py', 'ones flip, zeros do not',
        'ones - draws.binomial(ones, self.flip) + draws.binomial(self.users - ones, self.flip)',
        'ones - draws.binomial(ones, self.flip)',
        'shuffle/test_sums.py', 'TestResponse',
    ),
    Mistake(
        'shuffle/sums.py', 'a curator counts one instance for all',
        'return self.law.promise(self.delta, math.sqrt(self.instances), self.instances)',
        'return self.law.promise(self.delta, 1.0, self.instances)',
        'shuffle/test_sums.py', 'TestCurator',
    ),
    Mistake(
        'density/kde.py', 'the noise of the bits counted once, not four times',
        'return rounding / float(n) ** 2, 4 * bound**2 * noise / float(n) ** 2',
        'return rounding / float(n) ** 2, bound**2 * noise / float(n) ** 2',
        'density/test_kde.py', 'TestSquareWave',
    ),
    Mistake(
        'density/kde.py', 'the mean of the bits is not centred',
        'value = bound * (2 * self.law.decode(tally["total"], n) / n - 1)',
        'value = bound * (2 * self.law.decode(tally["total"], n) / n)',
        'density/test_kde.py', 'TestSquareWave',
    ),
    Mistake(
        'regression/central.py', 'a release with a tenth less noise',
        'exact + self.deviations().to(exact) * draws.normal((*shape, self.width))',
        'exact + 0.9 * self.deviations().to(exact) * draws.normal((*shape, self.width))',
        'regression/test_baselines.py', 'TestSufficientStatistics',
    ),
)  # fmt: skip
