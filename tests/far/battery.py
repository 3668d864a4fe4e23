"""Every entry of the battery on a device that is not there: its calls, its values beside the CPU's. Run as a child."""

import dataclasses
import json
import sys
import traceback
from functools import partial
from pathlib import Path

import device

device.register("--fused" in sys.argv)

import torch  # noqa: E402
from contract import entries  # noqa: E402

from torchdp import draws  # noqa: E402
from torchdp.noise import SeededNoise  # noqa: E402

draws.Draws._arrivals_at_once = 1
draws.RARE = 0  # a device draws a few words more than the CPU; without them the numbers are the same

TESTS = Path(__file__).resolve().parents[1]


def tensors(value, name="", depth=4):
    """(name, tensor) of all that is held."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for key, each in value.items():
            yield from tensors(each, f"{name}.{key}", depth)
    elif isinstance(value, tuple | list):
        for key, each in enumerate(value):
            yield from tensors(each, f"{name}.{key}", depth)
    elif depth and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), f"{name}.{field.name}", depth - 1)


def same(title, there, here, tolerance=1e-6):
    """That every tensor is there, and its numbers are the CPU's."""
    for (name, one), (_, two) in zip(tensors(there, title), tensors(here, title), strict=True):
        if one.device.type != "far":
            raise AssertionError(f"{name} is on the CPU")
        exact = {} if one.is_floating_point() else {"rtol": 0, "atol": 0}
        says = partial("{}: {}".format, name)
        near = {"rtol": tolerance, "atol": 1e-9} | exact
        torch.testing.assert_close(one.cpu(), two, equal_nan=True, msg=says, **near)


def checks(entry):
    """Name -> what is run of one entry."""
    here, x = entry.protocol, entry.x
    far = device.DEVICE
    there, users = device.moved(here), x.to(far)
    noise = lambda: (SeededNoise(3, far), SeededNoise(3))  # noqa: E731
    generators = lambda: (device.generator(3), torch.Generator().manual_seed(3))  # noqa: E731

    def collect():
        one, two = noise()
        tallies = there.collect(users, noise=one), here.collect(x, noise=two)
        same("collect", *tallies)
        same("analyse", there.analyse(tallies[0]), here.analyse(tallies[1]))
        there.estimate(users)

    def interval():
        found = there.estimate(users, noise=noise()[0])
        same("interval", found.interval(0.9), here.estimate(x, noise=noise()[1]).interval(0.9))

    def summary():
        both = there.summary(there.validate(users)), here.summary(here.validate(x))
        same("summary", *both)
        same("exact", there.exact(both[0]), here.exact(both[1]))
        predicted = there.predicted_mse(both[0]), here.predicted_mse(both[1])
        same("predicted_mse", *predicted, tolerance=max(1e-6, entry.slack))  # in part from draws
        there.worst_mse(len(x))

    def sample():
        both = there.summary(there.validate(users)), here.summary(here.validate(x))
        for shape in ((), (2, 3), (0,)):
            one, two = generators()
            found = there.sample_tally(both[0], generator=one, sample_shape=shape)
            same("sample_tally", found, here.sample_tally(both[1], generator=two, sample_shape=shape))
        estimate = there.sample_estimate(both[0], generator=generators()[0], sample_shape=(2,))
        again = here.sample_estimate(both[1], generator=generators()[1], sample_shape=(2,))
        same("sample_estimate", estimate, again)

    def messages():
        one, two = noise()
        sent = there.randomize(users, noise=one)
        same("randomize", sent, here.randomize(x, noise=two))
        tally = there.tally(sent)
        there.analyse(there.add(there.empty, tally))
        assert there.encode(sent) == here.encode(here.randomize(x, noise=noise()[1]))
        there.tally(device.moved(there.decode(there.encode(sent))))

    found = {"collect": collect, "interval": interval, "summary": summary, "sample": sample}
    return found | ({"messages": messages} if hasattr(there, "randomize") else {})


def run(entry):
    """Name -> what is wrong."""
    wrong = {}
    try:
        with device.counted():
            parts = checks(entry)
    except Exception:
        return {"made": traceback.format_exc()}
    for name, part in parts.items():
        try:
            with device.counted():
                part()
        except Exception:
            wrong[name] = traceback.format_exc()
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    only = [a for a in sys.argv[1:] if not a.startswith("-")]
    listed = entries(*sorted({one.split(".")[0] for one in only}))
    found = {name: run(each) for name, each in listed.items() if not only or any(o in name for o in only)}
    if "--json" in sys.argv:
        print(json.dumps(found))
    else:
        for name, wrong in found.items():
            for part, trace in wrong.items():
                lines = trace.strip().splitlines()
                if "-v" in sys.argv:
                    print(trace)
                where = [
                    each.split("torchdp/")[-1] for each in lines if "/torchdp/" in each or "/kernels/" in each
                ]
                print(f"{name}: {part}: {lines[-1][:300]}\n      {' <- '.join(where[:-4:-1])}")
        print(len(found), "entries", sum(map(bool, found.values())), "wrong")
