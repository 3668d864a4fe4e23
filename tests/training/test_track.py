"""Rules of operations: which examples a result may depend on, by the rule and by trying.

Each number of an operation's arguments is given to an example; one example's numbers are changed,
and what moves in the results must be that example's by the rule.
"""

import contextlib
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from torchdp.randomness import keyed_generator
from torchdp.training import track
from torchdp.training.calls import Untaken, tensors
from torchdp.training.per_example import masks

N = 5
CPU = torch.device("cpu")

# Of a GPU alone; and what works in place only, whose rule is that of the other ones.
UNTRIED = {name for name in track.RULES if "dot_product" in name and "for_cpu" not in name}
UNTRIED |= {"_fused_rms_norm", "_fused_rms_norm_backward", "copy"}

aten = torch.ops.aten
TWICE = {"scale_factor": 2}
EACH = {"reduction": "none"}
AROUND = (1, 1, 1, 1)
WEIGHT = torch.linspace(-1, 1, 4 * 2 * 3 * 3).reshape(4, 2, 3, 3)


def grid(x):
    places = x[:, :2].permute(0, 2, 3, 1).tanh()
    return F.grid_sample(x, places, align_corners=False)


def normed(x, **options):
    return F.batch_norm(x, torch.zeros(4), torch.ones(4), **options)


def attended(x, mask=None):
    return F.scaled_dot_product_attention(x, x, x, mask)


def classes(x):
    return x.detach().argmax(1)


def beside(loss, **options):
    """A loss beside numbers that are near."""
    return lambda x: loss(x, x.detach().tanh(), **options)


# Functions of one tensor (5, 4, 6, 6), run forward and backward under the tracker.
IMAGES = [
    lambda x: F.interpolate(x, **TWICE),
    lambda x: F.interpolate(x, **TWICE, mode="bilinear"),
    lambda x: F.interpolate(x, **TWICE, mode="bicubic"),
    lambda x: F.interpolate(x[:, 0], **TWICE),
    lambda x: F.interpolate(x[:, 0], **TWICE, mode="linear"),
    lambda x: F.avg_pool3d(x[:, None], 2),
    lambda x: F.max_pool3d(x[:, None], 2),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.adaptive_avg_pool2d(x, 2),
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.adaptive_max_pool2d(x, 2),
    lambda x: F.pad(x, AROUND, "reflect"),
    lambda x: F.pad(x, AROUND, "replicate"),
    lambda x: F.pad(x, AROUND),
    lambda x: F.pad(x[:, 0], (1, 1), "reflect"),
    lambda x: F.pad(x[:, 0], (1, 1), "replicate"),
    lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    lambda x: F.channel_shuffle(x, 2),
    grid,
    lambda x: F.fold(F.unfold(x, 3), 6, 3),
    lambda x: F.conv2d(x, WEIGHT, groups=2),
    lambda x: F.conv_transpose2d(x, WEIGHT),
    normed,
    lambda x: normed(x, training=True),
    F.instance_norm,
    lambda x: F.group_norm(x, 2),
    attended,
    lambda x: attended(x, x.detach()),
    lambda x: attended(x, x[0, 0].detach()),
    lambda x: F.prelu(x, torch.ones(4)),
    lambda x: x.mT.triu() @ x.tril(),
    lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2]),
    lambda x: x.unfold(2, 3, 2),
    lambda x: x.diagonal(0, 2, 3),
    torch.diag_embed,
    lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=6),
    lambda x: torch.fft.fft(torch.complex(x, x)).real,
    lambda x: F.cross_entropy(x, classes(x), **EACH),
    torch.linalg.inv,
]
ALONG = (
    "amax amin mean sum prod var std logsumexp nansum median max min cummax cummin cumsum cumprod "
    "logcumsumexp sort argmax argmin aminmax softmax log_softmax count_nonzero all any"
).split()
ELEMENTWISE = (
    F.hardtanh, F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, F.mish, F.softshrink, F.logsigmoid,
    F.softplus, F.hardshrink, torch.tanh,
)  # fmt: skip
COLUMNS = torch.arange(5)[:, None].expand(5, 6)
# Of one tensor (5, 6).
ROWS = [
    *(partial(getattr(torch, name), dim=dim) for name in ALONG for dim in (0, 1)),
    *ELEMENTWISE,
    lambda x: x.kthvalue(2, 1),
    lambda x: x.kthvalue(2, 0),
    lambda x: x.topk(2, 0),
    lambda x: torch.var_mean(x, 1),
    lambda x: torch.std_mean(x, 0)[1],
    torch.mean,
    lambda x: torch.linalg.vector_norm(x, dim=1),
    lambda x: aten.norm(x, 3, [1], True),
    lambda x: aten.norm(x, 3, [0]),
    lambda x: aten.norm(x, 3),
    lambda x: torch.linalg.cross(x[:, :3], x[:, 3:]),
    lambda x: torch.linalg.cross(x[:3], x[2:], dim=0),
    lambda x: torch.polar(x, x).real,
    lambda x: torch.complex(x, x).abs(),
    lambda x: F.prelu(x, x[0]),
    lambda x: aten._safe_softmax(x, 1),
    F.glu,
    beside(F.smooth_l1_loss, **EACH),
    beside(F.smooth_l1_loss),
    beside(F.huber_loss, **EACH),
    beside(F.huber_loss),
    beside(F.mse_loss, **EACH),
    beside(F.mse_loss),
    lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), **EACH),
    lambda x: F.cross_entropy(x, classes(x), **EACH),
    lambda x: F.cross_entropy(x, classes(x)),
    lambda x: F.cross_entropy(x, classes(x), torch.arange(6.0)),
    lambda x: torch.addmv(x[:, 0], x, x[0]),
    lambda x: torch.addmm(x, x, x.mT @ x),
    lambda x: torch.bmm(x[:, None], x[:, :, None]),
    lambda x: x.scatter(1, x.argsort(1), 1.0),
    lambda x: x.scatter_reduce(1, x.argsort(1), x, "amax"),
    lambda x: x.scatter(0, COLUMNS.flip(0), x),
    lambda x: x.gather(0, x.argsort(0)),
    lambda x: x.repeat(2, 3),
    lambda x: x.roll(1, 0).flip(1),
    lambda x: torch.cat([x, torch.stack([x[0], x[1]])]),
    lambda x: x.index_select(0, x[:, 0].argsort()),
    lambda x: x[x[:, 0].argsort()],
    lambda x: x[torch.arange(5), x.argmax(1)],
    lambda x: x[:, x.argmax(1)],
    lambda x: x.index_put((x.argmax(1).clamp(max=4),), x),
    lambda x: x.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), x[:2, 0], True),
    lambda x: F.embedding(x.argsort(1).clamp(max=4), x),
    lambda x: F.rms_norm(x, (6,)),
    lambda x: torch.native_dropout(x, 0.5, True),
    lambda x: F.layer_norm(x, (6,), torch.ones(6), torch.zeros(6)),
    lambda x: torch.cdist(x, x),
    lambda x: torch.where(x > 0, x, x.tanh()).masked_fill(x > 1, 0.0),
    lambda x: torch.full_like(x, 3.0) + aten.fill(x, 2.0),
    lambda x: torch.zeros_like(x).index_copy(0, torch.arange(5), x),
]


class Probed(track.Track):
    """Tries the rule of each call that it has not seen.

    ``seen``: names, dimensions and constants of calls; ``moved``: operations whose results moved
    outside of their bounds.
    """

    seen: set
    moved: set

    def __init__(self, seen, moved):
        super().__init__(N)
        self.seen = seen
        self.moved = moved

    def _follow(self, func, args, kwargs, out):
        super()._follow(func, args, kwargs, out)
        given = list(tensors((args, kwargs)))
        stores = {track.key(t) for t in given}
        is_view = all(track.key(t) in stores for t in tensors(out))
        name = func.overloadpacket.__name__
        # What is not filled holds any numbers.
        if func._schema.is_mutable or not given or is_view or "empty" in name:
            return
        constants = tuple(str(v) for v in args if not isinstance(v, torch.Tensor))
        call = (name, str(func), tuple(t.ndim for t in given), constants)
        # One trial for each operation, number of dimensions and constants.
        if call not in self.seen:
            self.seen.add(call)
            if moves(func, args, kwargs):
                self.moved.add(name)


def assigned(t, trial, g):
    """To which example each number belongs, -1 for none: at random, or along one dimension."""
    if trial == 0 and not t.is_floating_point():
        return torch.full(t.shape, -1)
    if trial != 1 or not t.ndim:
        return torch.randint(-1, N, t.shape, generator=g)
    dim = int(torch.randint(t.ndim, (), generator=g))
    along = torch.arange(t.shape[dim]) % N
    return along.reshape(-1, *[1] * (t.ndim - dim - 1)).expand(t.shape)


def changed(t, hit, g):
    """Other numbers where ``hit``, valid ones for an index."""
    if t.is_floating_point():
        added = 3 * torch.randn(t.shape, generator=g).to(t.dtype)
        return torch.where(hit, t + added, t)
    if t.dtype == torch.bool:
        return torch.where(hit, ~t, t)
    if t.dtype == torch.int64 and t.numel() and int(t.min()) >= 0:
        return torch.where(hit, (t + 1) % (t.max() + 1), t)
    return t


def moves(func, args, kwargs):
    """Whether numbers of the call's results move that are not the changed example's by the rule."""
    g = keyed_generator(str(func).encode())
    given = {id(t): t for t in tensors((args, kwargs)) if not t.is_complex()}

    def put(values):
        """The call's arguments, of other numbers."""
        return tree_map(lambda v: values.get(id(v), v), (args, kwargs))

    def run(values):
        others, options = put(values)
        # The same draws each time.
        with masks(0, CPU):
            return func(*others, **options)

    for trial in range(3):
        follower = track.Track(N)
        # Who owns which number is drawn: a rule must hold for any owners.
        owners = {place: assigned(t, trial, g) for place, t in given.items()}
        copies = {place: t.detach().clone().contiguous() for place, t in given.items()}
        for place, t in copies.items():
            i = owners[place].to(torch.int8)
            bounds = torch.stack([torch.where(i < 0, 0, N - i), i + 1]).to(torch.int8)
            follower._hold(t)
            follower._set(t, bounds, False)
        before = run(copies)
        try:
            follower._follow(func, *put(copies), before)
        except Untaken:
            return False  # what is refused claims nothing
        for i in range(N):
            others = {place: changed(t, owners[place] == i, g) for place, t in copies.items()}
            # Other numbers may be no arguments, as a place out of range.
            with contextlib.suppress(RuntimeError, IndexError):
                pairs = zip(tensors(before), tensors(run(others)), strict=True)
                if any(outside(follower, x, y, i) for x, y in pairs):
                    return True
    return False


def outside(follower, x, y, i):
    """Whether a number moved that is not example i's by the rule."""
    if x.shape != y.shape or not x.numel():
        return False
    bounds = follower.own(x)
    allowed = torch.zeros(x.shape, dtype=torch.bool)
    if bounds is not None:
        allowed = (bounds[0] >= N - i) & (bounds[1] >= i + 1)
    off = (x != y) & ~(x.isnan() & y.isnan())
    if x.is_floating_point() or x.is_complex():
        # Less is rounding.
        largest = x.abs().nan_to_num(0.0, 0.0, 0.0).amax()
        off &= ~((x - y).abs() <= 1e-5 * largest)
    return bool((off & ~allowed).any())


def probed(functions, shape):
    """The calls that were tried, the operations whose results moved, and what was refused."""
    seen = set()
    moved = set()
    refused = []
    x = torch.randn(shape, generator=keyed_generator(b"track"))
    for function in functions:
        try:
            with Probed(seen, moved) as mode:
                rows = mode.rows(x).requires_grad_()
                y = next(tensors(function(rows)))
                if y.requires_grad:
                    torch.autograd.grad(y, rows, torch.ones_like(y), allow_unused=True)
        except Untaken as error:
            refused.append(str(error))
    return seen, moved, refused


def test_guarantee_no_result_moves_outside_of_its_bounds_in_any_rule():
    reached = set(UNTRIED)
    for functions, shape in ((IMAGES, (5, 4, 6, 6)), (ROWS, (5, 6))):
        seen, moved, refused = probed(functions, shape)
        assert not moved
        assert not refused
        reached |= {name for name, *_ in seen}
    # A rule that no function here comes to is tried by nothing.
    unreached = track.RULES.keys() - reached
    assert not unreached, " ".join(sorted(unreached))


@pytest.mark.parametrize(
    ("wrong", "function", "shape"),
    [
        ("_softmax", lambda x: x.softmax(1), (5, 6)),
        ("_log_softmax", lambda x: x.log_softmax(1), (5, 6)),
        ("cumsum", lambda x: x.cumsum(0), (5, 6)),
        ("sort", lambda x: x.sort(0), (5, 6)),
        ("gather", lambda x: x.gather(0, x.argsort(0)), (5, 6)),
        ("native_group_norm", lambda x: F.group_norm(x, 2), (5, 4, 6, 6)),
    ],
)
def test_a_rule_that_says_too_little_is_found(monkeypatch, wrong, function, shape):
    """Declared elementwise, each of these is seen to move outside of its bounds."""
    # Rules are found once for each operation.
    track._rule.cache_clear()
    monkeypatch.setitem(track.RULES, wrong, track._elementwise)
    try:
        _, moved, _ = probed([function], shape)
        assert wrong in moved
    finally:
        track._rule.cache_clear()


def test_operations_are_followed_without_torchs_compiler():
    """Wrapped, as torch wraps modes, the first call would import it."""
    assert not hasattr(track.Track.__torch_dispatch__, "__wrapped__")
