"""Rules of operations: which examples a result may depend on, by the rule and by trying.

Each number of an operation's arguments is given to an example; one example's numbers are changed,
and what moves in the results must be that example's by the rule.
"""

import contextlib

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from torchdp.randomness import keyed_generator
from torchdp.training import track
from torchdp.training.calls import Untaken, tensors

N = 5
ALL = object()

# Of a GPU alone; and what works in place only, whose rule is that of the other ones.
UNTRIED = {name for name in track.RULES if "dot_product" in name and "for_cpu" not in name}
UNTRIED |= {"_fused_rms_norm", "_fused_rms_norm_backward", "copy"}

# Functions of one tensor (5, 4, 6, 6), run forward and backward under the tracker.
aten = torch.ops.aten
WEIGHT = torch.linspace(-1, 1, 4 * 2 * 3 * 3).reshape(4, 2, 3, 3)
IMAGES = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "average pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 2),
    "maximum pool": lambda x: F.max_pool2d(x, 2),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 2),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "replicated": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "padded": lambda x: F.pad(x, (1, 1, 1, 1)),
    "shuffled": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    "channels shuffled": lambda x: F.channel_shuffle(x, 2),
    "grid": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False),
    "folded": lambda x: F.fold(F.unfold(x, 3), 6, 3),
    "convolution": lambda x: F.conv2d(x, WEIGHT, groups=2),
    "transposed": lambda x: F.conv_transpose2d(x, WEIGHT, groups=1),
    "batch norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "batch statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "running statistics": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    "instance norm": F.instance_norm,
    "group norm": lambda x: F.group_norm(x, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention under a mask": lambda x: F.scaled_dot_product_attention(x, x, x, x.detach()),
    "attention under a flat mask": lambda x: F.scaled_dot_product_attention(x, x, x, x[0, 0].detach()),
    "prelu": lambda x: F.prelu(x, torch.ones(4)),
    "triangles": lambda x: x.mT.triu() @ x.tril(),
    "baddbmm": lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2]),
    "unfolded": lambda x: x.unfold(2, 3, 2),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "fourier": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=6),
    "fourier of complex": lambda x: torch.fft.fft(torch.complex(x, x)).real,
    "embedded diagonal": lambda x: torch.diag_embed(x),
    "reflected line": lambda x: F.pad(x[:, 0], (1, 1), "reflect"),
    "entropy of images": lambda x: F.cross_entropy(x, x.detach().argmax(1), reduction="none"),
    "inverse": torch.linalg.inv,
}  # fmt: skip
REDUCE = (
    "amax amin mean sum prod var std logsumexp nansum median max min cummax cummin cumsum cumprod "
    "logcumsumexp sort argmax argmin aminmax softmax log_softmax argsort count_nonzero all any"
).split()
ROWS = {f"{name} {dim}": (lambda x, f=name, dim=dim: getattr(torch, f)(x, dim=dim))
        for name in REDUCE for dim in (0, 1)}  # fmt: skip
ROWS |= {
    "kth": lambda x: x.kthvalue(2, 1)[0],
    "kth of a column": lambda x: x.kthvalue(2, 0)[0],
    "largest": lambda x: x.topk(2, 0)[0],
    "variance and mean": lambda x: torch.var_mean(x, 1)[0],
    "deviation and mean": lambda x: torch.std_mean(x, 0)[1],
    "mean of all": torch.mean,
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "safe softmax": lambda x: aten._safe_softmax(x, 1),
    **{f.__name__: f for f in (F.hardtanh, F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, F.mish)},
    **{f.__name__: f for f in (F.softshrink, F.logsigmoid, F.softplus, torch.sgn, torch.tanh)},
    "glu": lambda x: F.glu(x),
    "smooth loss": lambda x: F.smooth_l1_loss(x, x.detach().tanh(), reduction="none"),
    "smooth loss, mean": lambda x: F.smooth_l1_loss(x, x.detach().tanh()),
    "huber": lambda x: F.huber_loss(x, x.detach().tanh(), reduction="none"),
    "huber, mean": lambda x: F.huber_loss(x, x.detach().tanh()),
    "squares": lambda x: F.mse_loss(x, x.detach().tanh(), reduction="none"),
    "squares, mean": lambda x: F.mse_loss(x, x.detach().tanh()),
    "binary": lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), reduction="none"),
    "entropy": lambda x: F.cross_entropy(x, x.detach().argmax(1), reduction="none"),
    "entropy, mean": lambda x: F.cross_entropy(x, x.detach().argmax(1)),
    "weighted entropy": lambda x: F.cross_entropy(x, x.detach().argmax(1), torch.arange(6.0)),
    "mv": lambda x: torch.mv(x, x[0]),
    "addmv": lambda x: torch.addmv(x[:, 0], x, x[0]),
    "addmm": lambda x: torch.addmm(x, x, x.mT @ x),
    "bmm": lambda x: torch.bmm(x[:, None], x[:, :, None]),
    "absolute complex": lambda x: torch.complex(x, x).abs(),
    "scattered": lambda x: x.scatter(1, x.argsort(1), x),
    "scattered constant": lambda x: x.scatter(1, x.argsort(1), 1.0),
    "added": lambda x: x.scatter_add(1, x.argsort(1), x),
    "reduced": lambda x: x.scatter_reduce(1, x.argsort(1), x, "amax"),
    "scattered to columns": lambda x: x.scatter(0, torch.arange(5)[:, None].expand(5, 6).flip(0), x),
    "gathered": lambda x: x.gather(0, x.argsort(0)),
    "gathered within": lambda x: x.gather(1, x.argsort(1)),
    "repeated": lambda x: x.repeat(2, 3),
    "rolled": lambda x: x.roll(1, 0).flip(1),
    "joined": lambda x: torch.cat([x, torch.stack([x[0], x[1]])]),
    "rows added": lambda x: x.index_add(0, torch.tensor([1, 1]), x[:2]),
    "rows chosen": lambda x: x.index_select(0, x[:, 0].argsort()),
    "rows indexed": lambda x: x[x[:, 0].argsort()],
    "a number of each": lambda x: x[torch.arange(5), x.argmax(1)],
    "columns indexed": lambda x: x[:, x.argmax(1)],
    "rows put": lambda x: x.index_put((x.argmax(1).clamp(max=4),), x),
    "numbers put": lambda x: x.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), x[:2, 0], True),
    "embedding": lambda x: F.embedding(x.argsort(1).clamp(max=4), x),
    "root norm": lambda x: F.rms_norm(x, (6,)),
    "dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "layer norm": lambda x: F.layer_norm(x, (6,), torch.ones(6), torch.zeros(6)),
    "distances": lambda x: torch.cdist(x, x),
    "chosen": lambda x: torch.where(x > 0, x, x.tanh()).masked_fill(x > 1, 0.0),
    "filled": lambda x: torch.full_like(x, 3.0) + aten.fill(x, 2.0),
    "in half": lambda x: x.to(torch.bfloat16).float(),
    "sub-rows written": lambda x: torch.zeros_like(x).index_copy(0, torch.arange(5), x),
}  # fmt: skip


class Probed(track.Track):
    """Tries the rule of each call that it has not seen."""

    seen: set
    moved: set

    def __init__(self, n, seen, moved):
        super().__init__(n)
        self.seen = seen
        self.moved = moved

    def _follow(self, func, args, kwargs, out):
        super()._follow(func, args, kwargs, out)
        given = list(tensors((args, kwargs)))
        stores = {track.key(t) for t in given}
        is_view = all(track.key(t) in stores for t in tensors(out))
        # What is not filled holds any numbers.
        if func._schema.is_mutable or not given or is_view or "empty" in str(func):
            return
        constants = tuple(str(v) for v in args if not isinstance(v, torch.Tensor))
        call = (str(func), tuple(t.ndim for t in given), constants)
        if call not in self.seen:
            self.seen.add(call)
            probe(func, args, kwargs, self.moved)


def assigned(t, i, g):
    """To which example each number belongs, -1 for none: at random, or along one dimension."""
    whole = not t.is_floating_point()
    if i == 0 and whole:
        return torch.full(t.shape, -1)
    if i != 1 or not t.ndim:
        return torch.randint(-1, N, t.shape, generator=g)
    dim = int(torch.randint(t.ndim, (), generator=g))
    along = torch.arange(t.shape[dim]) % N
    return along.reshape(-1, *[1] * (t.ndim - dim - 1)).expand(t.shape)


def changed(t, hit, g):
    """Other numbers where ``hit``, valid ones for an index."""
    if t.is_floating_point():
        return torch.where(hit, t + 3 * torch.randn(t.shape, generator=g).to(t.dtype), t)
    if t.dtype == torch.bool:
        return torch.where(hit, ~t, t)
    if t.dtype == torch.int64 and t.numel() and int(t.min()) >= 0:
        return torch.where(hit, (t + 1) % (t.max() + 1), t)
    return t


def probe(func, args, kwargs, moved):
    g = keyed_generator(str(func).encode())
    given = {id(t): t for t in tensors((args, kwargs)) if not t.is_complex()}

    def put(values):
        def one(v):
            return values.get(id(v), v) if isinstance(v, torch.Tensor) else v

        return tree_map(one, args), tree_map(one, kwargs)

    def run(values):
        # The same draws each time.
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return func(*put(values)[0], **put(values)[1])

    for trial in range(3):
        follower = track.Track(N)
        own = {place: assigned(t, trial, g) for place, t in given.items()}
        copies = {place: t.detach().clone().contiguous() for place, t in given.items()}
        for place, t in copies.items():
            row = own[place].to(torch.int8)
            bounds = torch.stack([torch.where(row < 0, 0, N - row), row + 1]).to(torch.int8)
            follower._hold(t)
            follower._set(t, bounds, False)
        before = run(copies)
        try:
            follower._follow(func, *put(copies), before)
        except Untaken:
            return  # what is refused claims nothing
        for i in range(N):
            others = {place: changed(t, own[place] == i, g) for place, t in copies.items()}
            with contextlib.suppress(RuntimeError, IndexError):
                after = run(others)
                for x, y in zip(tensors(before), tensors(after), strict=True):
                    if outside(follower, x, y, i):
                        moved.add(func.overloadpacket.__name__)


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
        off &= ~((x - y).abs() <= 1e-5 * x.abs().nan_to_num(0.0, 0.0, 0.0).amax())
    return bool((off & ~allowed).any())


def probed(names=ALL):
    """The calls that were tried, the operations whose results moved, and the functions that failed."""
    seen = set()
    moved = set()
    failed = set()
    for shape, functions in (((5, 4, 6, 6), IMAGES), ((5, 6), ROWS)):
        for name, function in functions.items():
            if names is not ALL and name not in names:
                continue
            g = keyed_generator(name.encode())
            try:
                with Probed(N, seen, moved) as mode:
                    x = mode.rows(torch.randn(shape, generator=g)).requires_grad_()
                    y = function(x)
                    y = y[0] if isinstance(y, tuple) else y
                    if y.requires_grad:
                        torch.autograd.grad(y, x, torch.ones_like(y), allow_unused=True)
            except Untaken:
                failed.add(name)
    return seen, moved, failed


def test_guarantee_no_result_moves_outside_of_its_bounds_in_any_rule():
    seen, moved, failed = probed()
    names = {call[0].split(".")[1].split("(")[0] for call in seen}
    assert not moved
    assert not failed
    unreached = set(track.RULES) - names - UNTRIED
    assert not unreached, " ".join(sorted(unreached))


@pytest.mark.parametrize(
    ("wrong", "function"),
    [("_softmax", "softmax 1"), ("cumsum", "cumsum 0"), ("native_group_norm", "group norm"),
     ("sort", "sort 0"), ("gather", "gathered"), ("_log_softmax", "log_softmax 1")],
)  # fmt: skip
def test_a_rule_that_says_too_little_is_found(monkeypatch, wrong, function):
    """Declared elementwise, each of these is seen to move outside of its bounds."""
    track._rule.cache_clear()
    monkeypatch.setitem(track.RULES, wrong, track._elementwise)
    try:
        assert wrong in probed({function})[1]
    finally:
        track._rule.cache_clear()
