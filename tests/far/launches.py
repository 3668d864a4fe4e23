"""What a GPU would at least take to start each call's operations, beside one core's time for all of
the call.

    cd tests/far && PYTHONPATH=../..:.. python launches.py [NAME ...]

For every entry of the battery whose name begins so, with 100,000 users where it takes as many: their
rows are on the device that is not there, the protocol on the CPU (docs/gpu.md), the generator where
it draws. Operations that only change how a tensor is seen are not counted. A launch is taken to last
5 microseconds, a wait 15: assumptions, not measured on a GPU. Fused kernels are off.
"""

import os
import sys
import time

os.environ["TORCHDP_KERNELS"] = "reference"

# which registers the device
import battery
import torch
from contract import entries

USERS = 100_000
LAUNCH = 5e-6
WAIT = 15e-6
# seconds that a call is timed for
TIMED = 0.1


def calls(side):
    """Name -> the call, of users' rows, wherever they are."""
    protocol = side.protocol
    summary = side.summarised()
    return {
        "estimate": lambda: protocol.estimate(side.x, noise=side.noise()),
        "sample_estimate": lambda: protocol.sample_estimate(summary, generator=side.generator()),
        "predicted_mse": lambda: protocol.predicted_mse(summary),
    }


def many(protocol, x):
    """The users again and again, up to 100,000, where the protocol takes so many."""
    times = -(-USERS // len(x))
    rows = x.repeat(times, *[1] * (x.ndim - 1))[:USERS]
    try:
        protocol.estimate(rows)
    except ValueError:  # made for fewer users, or clients
        return x
    return rows


def seconds(call):
    """Of one call, the mean of those within a tenth of a second, after one."""
    call()
    start = time.perf_counter()
    repeats = 0
    while time.perf_counter() - start < TIMED:
        call()
        repeats += 1
    return (time.perf_counter() - start) / repeats


def counted(call):
    with battery.device.counted() as counts:
        call()
    return counts


def main():
    torch.set_num_threads(1)
    shares = []
    print(
        f"{'call':52} {'users':>7} {'launches':>8} {'waits':>6} {'floor ms':>9} {'core ms':>9} {'share':>6}"
    )
    for name, entry in entries().items():
        if not name.startswith(tuple(sys.argv[1:]) or ""):
            continue
        protocol = entry.protocol
        x = many(protocol, entry.x)
        here = calls(battery.Side(protocol, x, x.device))
        far = battery.DEVICE
        try:
            with battery.device.counted():
                there = calls(battery.Side(protocol, x.to(far), far))
        except ValueError as error:
            print(f"{name:52} {str(error)[:70]}")
            continue
        for verb, call in here.items():
            counts = counted(there[verb])
            floor = LAUNCH * counts.launches + WAIT * counts.syncs
            core = seconds(call)
            shares.append(floor / core)
            print(
                f"{name + '.' + verb:52} {len(x):7d} {counts.launches:8d} {counts.syncs:6d} "
                f"{1e3 * floor:9.2f} {1e3 * core:9.2f} {floor / core:6.2f}"
            )
    above = [sum(share > bound for share in shares) for bound in (0.5, 0.25, 0.1)]
    print(f"{len(shares)} calls; floors above a half of the core's time: {above[0]}, ")
    print(f"above a quarter: {above[1]}, above a tenth: {above[2]}")


if __name__ == "__main__":
    main()
