"""Launches and synchronisations of one call each, over all rooms, counted on a device that is not there.

Command:  python experiments/bench/launches.py [--write FILE | --json | --show PART | --floors] [--only PART|PART]
Expected: no synchronisation in a training step; as many whatever the users, types and repetitions in what collects,
    samples and predicts (two sizes are measured). Latency on a GPU is about 5 us a launch and 10 to 20 us a
    synchronisation, so the table tells which call waits for the processor.
Output:   launches.csv beside this file, launches_before.csv of the code before the first count; --floors writes
    floors.csv: a core's milliseconds of each call with 100,000 users, 32 types, 24 repetitions, beside the launches,
    waits and bytes of that call there. Bytes: of all tensors that each operation takes and gives. The floor is 5 us a
    launch and 15 us a wait, or the bytes at 3.35e12 a second (H100 SXM datasheet) where that is more. A call whose
    floor is above its time on a core gains nothing from a GPU.
Time: two minutes on one core; --floors ten.

``PYTHONPATH=<another checkout> python experiments/bench/launches.py`` counts that checkout's calls. What counts:
tests/far/device.py, which makes the device and belongs to the tests. A call's tensors and its protocol are made before
it is counted, unless the row says "construct". ``--show`` says where a call's synchronisations come from.
"""

import csv
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(
    0, str(HERE.parents[1] / "tests" / "far")
)  # the device belongs to the tests: its interface is experimental

import device  # noqa: E402
import torch  # noqa: E402

FIELDS = ("room", "call", "launches", "synchronisations", "launches_large", "synchronisations_large")


@dataclass(frozen=True)
class World:
    """Sizes of a call, and what it is made of, on the device."""

    n: int = 200
    k: int = 8
    repeats: int = 3

    @property
    def device(self):
        return device.DEVICE

    def noise(self):
        from torchdp.noise import SeededNoise

        return SeededNoise(1, self.device)

    def generator(self, seed=1):
        return device.generator(seed) if self.device.type == "far" else torch.Generator().manual_seed(seed)

    def types(self):
        return (torch.arange(self.n, device=self.device) ** 2) % self.k

    def counts(self):
        return torch.bincount(self.types(), minlength=self.k)

    def ball(self, d=4, dtype=torch.float64):
        x = torch.randn(self.n, d, dtype=dtype, generator=torch.Generator().manual_seed(2))
        return (x / x.norm(dim=1, keepdim=True).clamp_min(1) * 0.999).to(self.device)

    def bits(self, instances=6):
        return torch.rand(self.n, instances, generator=torch.Generator().manual_seed(2)).to(self.device) < 0.4


SMALL, LARGE, MANY = World(), World(1600, 32, 24), World(100_000, 32, 24)
LAUNCH, WAIT, MEMORY = 5e-3, 15e-3, 3.35e9  # milliseconds at least; bytes a millisecond at most
CALLS = {}
GROWS = ("factorization", "tuning")  # rooms whose calls iterate until they are done


def call(name):
    """Adds a function world -> what to count."""

    def add(function):
        CALLS[name] = function
        return function

    return add


def add(name, made, verb):
    """``made(world)`` is not counted, ``verb(world, it)`` is."""
    CALLS[name] = lambda world: partial(verb, world, made(world))


def verbs(name, made, x, only=("estimate", "sample", "predict")):
    """The three verbs of a protocol."""

    def set_up(w):
        p, users = made(w), x(w)
        return p, users, p.summary(p.validate(users)), w.noise(), w.generator()

    def sampled(w, s):
        return s[0].sample_estimate(s[2], generator=s[4], sample_shape=(w.repeats,))

    if "construct" in only:
        add(f"{name}, construct", lambda w: None, lambda w, _: made(w))
    if "estimate" in only:
        add(f"{name}, estimate", set_up, lambda w, s: s[0].estimate(s[1], noise=s[3]))
    if "sample" in only:
        add(f"{name}, sample_estimate", set_up, sampled)
    if "predict" in only:
        add(f"{name}, predicted_mse", set_up, lambda w, s: s[0].predicted_mse(s[2]))


def randomizer_calls():
    from torchdp import randomizers

    for kind in (
        "RandomizedResponse",
        "SubsetSelection",
        "OptimizedUnaryEncoding",
        "SymmetricUnaryEncoding",
        "HadamardResponse",
    ):
        verbs(f"randomizers: {kind}", lambda w, kind=kind: getattr(randomizers, kind)(w.k, 1.0), World.types)
    for kind in ("PrivUnit", "DuchiJordanWainwright"):
        made = lambda w, kind=kind: getattr(randomizers, kind)(4, 1.0)  # noqa: E731
        verbs(f"randomizers: {kind}", made, World.ball)


def pairwise_calls():
    from torchdp import pairwise, workloads

    gini = lambda w: pairwise.absolute_difference(w.k, spacing=1 / (w.k - 1)).to(w.device)  # noqa: E731
    for kind in ("OneMessage", "TwoMessage", "RandomizedResponsePlugIn", "SubsetPairs"):
        made = lambda w, kind=kind: getattr(pairwise, kind)(gini(w), 2.0)  # noqa: E731
        only = ("construct", "estimate", "sample", "predict") if kind == "OneMessage" else ("estimate", "sample")
        verbs(f"pairwise: {kind}", made, World.types, only)
    verbs("pairwise: TwoRound", lambda w: pairwise.TwoRound(gini(w), 8.0, 4.0, 0.8), World.types)
    add(
        "pairwise tuning: TwoRound.tuned",
        gini,
        lambda w, s: pairwise.TwoRound.tuned(s, w.n, 2.0),
    )
    add(
        "pairwise tuning: from_kernel",
        lambda w: workloads.absolute_difference(w.k, spacing=1.0, device=w.device),
        lambda w, K: pairwise.from_kernel(
            getattr(K, "dense", lambda: K)(), tol=1e-3, pairs=pairwise.Pairs.DISTINCT
        ),
    )


def factorization_calls():
    from torchdp import factorization, workloads

    prefix = lambda w: workloads.prefix(16, device=w.device).dense()  # noqa: E731
    add("factorization: factorize prefix 16 to 1e-4", prefix, lambda w, W: factorization.factorize(W, tol=1e-4))
    add("factorization: p = 2, shift", prefix, lambda w, W: factorization.factorize(W, 2.0, shift=True, tol=1e-3))
    certified = lambda w: (prefix(w), torch.eye(16).to(prefix(w)), torch.ones(16).to(prefix(w)) / 16)  # noqa: E731
    add(
        "factorization: certify",
        certified,
        lambda w, s: factorization.certify(s[0], s[0], s[1], s[2], s[2], p=2.0),
    )


def query_calls():
    from torchdp import queries, randomizers, workloads

    W = lambda w: workloads.prefix(w.k, device=w.device).dense()  # noqa: E731
    local = lambda w: queries.LocalFactorization.calibrated(queries.FactoredQueries.plain(W(w)), epsilon=1.0)  # noqa: E731
    central = lambda w: queries.CentralFactorization(queries.FactoredQueries.plain(W(w)), 1.0, 1e-5)  # noqa: E731
    oracle = lambda w: queries.LocalOracle(W(w), randomizers.RandomizedResponse(w.k, 1.0))  # noqa: E731
    verbs("queries: LocalFactorization", local, World.types)
    verbs("queries: CentralFactorization", central, World.types)
    verbs("queries: LocalOracle", oracle, World.types)


def mean_calls():
    from torchdp import domains, mean

    box = lambda w: domains.Box(-torch.ones(4, device=w.device), torch.ones(4, device=w.device))  # noqa: E731
    points = lambda w: domains.Polytope(w.ball()[:12])  # noqa: E731
    held = lambda w: w.ball()[:12].repeat(w.n // 10, 1)[: w.n]  # noqa: E731

    def central(w):
        return mean.GaussianMean.calibrated(box(w), domains.noise_shape(box(w), 2.0), epsilon=1.0, delta=1e-6)

    def local(w):
        return mean.LocalMean.calibrated(box(w), domains.noise_shape(box(w), 2.0), epsilon=2.0)

    def polytope(w):
        return mean.LocalMean.calibrated(points(w), domains.round_shape(points(w), 2.0), epsilon=2.0)

    verbs("mean: GaussianMean of a box", central, World.ball, ("construct", "estimate", "sample", "predict"))
    verbs("mean: LocalMean of a box", local, World.ball)
    verbs("mean: LocalMean of 12 points", polytope, held, ("construct", "estimate", "sample"))


def density_calls():
    from torchdp import density, shuffle

    def kde(family):
        def made(w):
            features = drawn(family(), w)
            return density.ShuffledKDE(features, shuffle.PoissonSum(w.n, 60.0), 1e-3)

        return made

    def drawn(family, w):
        return device.moved(family.draw(4, generator=torch.Generator().manual_seed(1)))

    single = lambda w: w.ball(dtype=torch.float32)  # noqa: E731
    verbs("density: GaussianFourier", kde(lambda: density.GaussianFourier(4, 1.0)), single)
    verbs(
        "density: GaussianOrthogonal", kde(lambda: density.GaussianOrthogonal(4)), single, ("estimate", "sample")
    )
    verbs("density: InnerProduct", kde(lambda: density.InnerProduct(4)), single, ("estimate", "sample"))


def shuffle_calls():
    from torchdp import shuffle

    sums = lambda law: lambda w: shuffle.BitSums(law(w), 6, 1e-5, 1.0)  # noqa: E731
    laws = {
        "PoissonSum": lambda w: shuffle.PoissonSum(w.n, 60.0),
        "RandomizedResponseSum": lambda w: shuffle.RandomizedResponseSum(w.n, 0.2),
        "NegativeBinomialSum": lambda w: shuffle.NegativeBinomialSum(w.n, 3.0, 0.6),
    }
    for name, law in laws.items():
        verbs(f"shuffle: {name}", sums(law), World.bits, ("estimate", "sample"))


def secure_calls():
    from torchdp import regression, secure, sketching

    def sketch(w):
        made = sketching.count_sketch(w.n, 16, generator=torch.Generator().manual_seed(1))
        return secure.SecureSketch(device.moved(made), 4, 1.0, 1.0, 1e-5)

    def rows(w):
        return regression.GramRelease(w.n, 3, 1.0, 1.0, 1e-6, label_bound=1.0)

    verbs("secure: SecureSketch", sketch, World.ball, ("construct", "estimate", "sample"))
    verbs("regression: GramRelease", rows, World.ball)


def collection_calls():
    from torchdp import collection, randomizers

    def journal(w):
        p = randomizers.RandomizedResponse(w.k, 1.0)
        tally = p.collect(w.types(), noise=w.noise())
        return collection.Collection.of(p).add("one", tally).add("two", tally)

    add("collection: estimate of two groups", journal, lambda w, c: c.estimate())


def training_calls():
    from torchdp import training
    from torchdp.training import noise as module
    from torchdp.training.clipping import Clipper

    if hasattr(module, "_recorded"):
        module._recorded = lambda total: False  # the counter is what it refuses

    def correlated(bands):
        def made(w):
            C = torch.eye(6, dtype=torch.float64)
            for band in range(1, bands):
                C += 0.5**band * torch.eye(6, dtype=torch.float64).roll(band, 0).tril(-band)
            noise = training.CorrelatedNoise(C.to(w.device), 64 * w.n, 1.0, noise=w.noise())
            noise(torch.zeros(64 * w.n, device=w.device))
            return noise, torch.ones(64 * w.n, device=w.device)

        return made

    def model(w):
        net = torch.nn.Sequential(torch.nn.Linear(4, w.k), torch.nn.Tanh(), torch.nn.Linear(w.k, 1)).to(w.device)
        x = w.ball(dtype=torch.float32)
        size = sum(p.numel() for p in net.parameters())
        noise = training.CorrelatedNoise(
            torch.eye(6, dtype=torch.float64).to(w.device), size, 1.0, noise=w.noise()
        )
        noise(torch.zeros(size, device=w.device))
        clipper, y = Clipper(net, torch.nn.functional.mse_loss), x[:, :1].contiguous()
        clipper(x, y, 1.0)  # a first batch is held to single examples, and waits for them
        return net, clipper, x, y, noise

    def step(w, s):
        net, clipper, x, y, noise = s
        training.set_gradients(net, noise(clipper(x, y, 1.0)[0]))

    forward = lambda w, s: s[0](s[1])  # noqa: E731
    add("training: CorrelatedNoise, independent, step", correlated(1), forward)
    add("training: CorrelatedNoise, three bands, step", correlated(3), forward)
    add("training: DP-SGD step", model, step)
    add("training: clip_and_sum", model, lambda w, s: s[1](s[2], s[3], 1.0))


def sketching_calls():
    from torchdp import sketching

    made = lambda w: (  # noqa: E731
        device.moved(sketching.count_sketch(w.n, 16, generator=torch.Generator().manual_seed(1))),
        w.ball(),
    )
    add("sketching: apply", made, lambda w, s: s[0].apply(s[1]))


def all_calls():
    for part in (
        randomizer_calls, pairwise_calls, factorization_calls, query_calls, mean_calls, density_calls, shuffle_calls,
        secure_calls, sketching_calls, collection_calls, training_calls,
    ):  # fmt: skip
        part()
    return CALLS


def count(made, world, traced=False):
    with device.counted():
        it = made(world)
    with device.counted(traced) as counts:
        it()
    return counts


def measure(calls, sizes=(SMALL, LARGE)):
    """Rows: room, call, launches and synchronisations at both sizes; or the error."""
    for name, made in calls.items():
        room, _, verb = name.partition(": ")
        row = {"room": room, "call": verb}
        for world, end in zip(sizes, ("", "_large"), strict=False):
            if end and room.endswith(GROWS):
                continue
            try:
                counts = count(made, world)
                row |= {f"launches{end}": counts.launches, f"synchronisations{end}": counts.syncs}
            except Exception as error:
                row |= {f"launches{end}": f"{type(error).__name__}: {error}"[:200]}
        yield row


def many(calls):
    """Launches, waits and bytes of each call of the largest size."""
    counted = {name: count(made, MANY) for name, made in calls.items()}
    return {name: (counts.launches, counts.syncs, counts.bytes) for name, counts in counted.items()}


def floors(calls):
    """Rows: a call, its floor on a GPU, counted by another process, and what one core takes of it in this one."""
    child = [sys.executable, *(each.replace("--floors", "--many") for each in sys.argv)]
    kept = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout)
    for name, made in calls.items():
        launches, waits, moved = kept[name]
        times = []
        for _ in range(3):
            it = made(MANY)
            start = time.process_time()
            it()
            times.append(1e3 * (time.process_time() - start))
        floor, core = max(LAUNCH * launches + WAIT * waits, moved / MEMORY), min(times)
        yield {
            "call": name, "launches": launches, "waits": waits, "megabytes": f"{moved / 1e6:.3g}",
            "floor_ms": f"{floor:.3g}", "core_ms": f"{core:.3g}", "floor_over_core": f"{floor / core:.2g}",
        }  # fmt: skip


def show(name):
    """Where a call's launches and synchronisations come from."""
    for one, made in CALLS.items():
        if name in one:
            for world in (SMALL, LARGE):
                counts = count(made, world, traced=True)
                print(one, world, counts.launches, counts.syncs)
                for (what, line), times in counts.where.most_common(40):
                    print(f"  {times:4d} {what:24s} {line}")
                print("  ", counts.by_name.most_common(24))


def main():
    torch.set_num_threads(1)
    if "--floors" not in sys.argv:
        device.register(True)
    calls = all_calls()
    if "--only" in sys.argv:
        parts = sys.argv[-1].split("|")
        calls = {name: made for name, made in calls.items() if any(part in name for part in parts)}
    if "--floors" in sys.argv:
        with (HERE / "floors.csv").open("w", newline="") as file:
            for place, row in enumerate(floors(calls)):
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if place == 0:
                    writer.writeheader()
                writer.writerow(row)
                file.flush()
                print(*row.values(), sep=" | ", flush=True)
        return None
    if "--show" in sys.argv:
        return show(sys.argv[-1])
    if "--many" in sys.argv:
        return print(json.dumps(many(calls)))
    rows = list(measure(calls))
    if "--json" in sys.argv:
        return print(json.dumps(rows))
    if "--write" in sys.argv:
        with Path(sys.argv[sys.argv.index("--write") + 1]).open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for row in rows:
        print(*(row.get(field, "") for field in FIELDS), sep=" | ")
    return None


if __name__ == "__main__":
    sys.exit(main())
