"""Every entry of the battery on a device that is not there: its calls, its values beside the CPU's.
Run as a child.

--device: on the CPU, while torch's default device is the one that is not there; --dtype: while
floats are doubles; --there: on the device, as without any of these.
"""

import contextlib
import dataclasses
import json
import sys
import traceback
from functools import partial
from pathlib import Path

import device

device.register("--fused" in sys.argv)

import torch  # noqa: E402
from batches import batch_of  # noqa: E402
from contract import UNBATCHED, entries  # noqa: E402
from torch.testing import assert_close  # noqa: E402

from torchdp import draws  # noqa: E402
from torchdp.noise import SeededNoise  # noqa: E402

DEVICE = device.DEVICE
draws.Draws._arrivals_at_once = 1
# a device draws a few words more than the CPU; without them the numbers are the same
draws.RARE = 0

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


def same(there, here, kinds, slack=0.0):
    """That every tensor is on a device of these kinds, and its numbers are those found on the
    CPU.
    """
    for name, one in there.items():
        # in part from draws, on both sides
        tolerance = max(1e-6, 3 * slack) if name == "predicted_mse" else 1e-6
        for (place, found), (_, expected) in zip(
            tensors(one, name), tensors(here[name], name), strict=True
        ):
            if found.device.type not in kinds:
                raise AssertionError(f"{place} is on {found.device}")
            exact = {} if found.is_floating_point() else {"rtol": 0, "atol": 0}
            says = partial("{}: {}".format, place)
            near = {"rtol": tolerance, "atol": 1e-9} | exact
            assert_close(found.cpu(), expected, equal_nan=True, msg=says, **near)


@dataclasses.dataclass
class Side:
    """A protocol and users on one device; each part returns what it finds by name."""

    protocol: object
    x: torch.Tensor
    device: torch.device

    def noise(self):
        return SeededNoise(3, self.drawn_on)

    @property
    def drawn_on(self):
        return self.protocol.drawn_on(self.device)

    def generator(self):
        far = self.drawn_on.type == "far"
        return device.generator(3) if far else torch.Generator("cpu").manual_seed(3)

    def summarised(self):
        return self.protocol.summary(self.protocol.validate(self.x))

    def collect(self):
        tally = self.protocol.collect(self.x, noise=self.noise())
        self.protocol.estimate(self.x)
        # of sums that stay there
        there = tally.to(self.device)
        return {"collect": tally, "analyse": self.protocol.analyse(there)}

    def interval(self):
        return {"interval": self.protocol.estimate(self.x, noise=self.noise()).interval(0.9)}

    def summary(self):
        made = self.summarised()
        here = self.protocol
        here.worst_mse(len(self.x))
        return {
            "summary": made,
            "exact": here.exact(made),
            "predicted_mse": here.predicted_mse(made),
        }

    def sample(self):
        made = self.summarised()
        draw = self.protocol.sample_tally
        found = {
            f"sample_tally {shape}": draw(made, generator=self.generator(), sample_shape=shape)
            for shape in ((), (2, 3), (0,))
        }
        estimate = self.protocol.sample_estimate(
            made, generator=self.generator(), sample_shape=(2,)
        )
        return found | {"sample_estimate": estimate}

    def batches(self):
        here = self.protocol
        made = self.summarised()
        if isinstance(here, UNBATCHED):
            return {}
        batch = batch_of([made, made])
        beside = torch.stack([self.x, self.x])
        groups = torch.arange(2, device=self.device).repeat_interleave(len(self.x))
        here.estimate(
            beside.flatten(0, 1),
            groups=groups,
            noise=self.noise(),
        )
        return {
            "exact": here.exact(batch),
            "predicted_mse": here.predicted_mse(batch),
            "sample_estimate": here.sample_estimate(
                batch, generator=self.generator(), sample_shape=(2,)
            ),
            "collect": here.collect(beside, noise=self.noise()),
        }

    def messages(self):
        here = self.protocol
        if not hasattr(here, "randomize"):
            return {}
        sent = here.randomize(self.x, noise=self.noise())
        tally = here.tally(sent)
        here.analyse(here.add(here.empty, tally))
        data = here.encode(sent)
        here.tally(device.moved(here.decode(data), self.device))
        octets = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return {"randomize": sent, "encode": octets.to(self.device)}


PARTS = ("collect", "interval", "summary", "sample", "batches", "messages")
DEFAULTS = {
    "--there": None,
    "--rows": None,
    "--device": lambda: torch.device(device.DEVICE),
    "--dtype": lambda: device.dtype(torch.float64),
}


def run(entry, default=None, protocol_here=False):
    """Name -> what is wrong. default: what torch's default is changed by, with all data on the
    CPU. protocol_here: the users' rows alone are there; what the protocol refuses it must name.
    """
    wrong = {}
    here = Side(entry.protocol, entry.x, torch.device("cpu"))
    for name in PARTS:
        try:
            with device.counted():
                expected = getattr(here, name)()
                with default() if default else contextlib.nullcontext():
                    there = here
                    if not default:
                        protocol = entry.protocol if protocol_here else device.moved(entry.protocol)
                        there = Side(protocol, here.x.to(DEVICE), DEVICE)
                    found = getattr(there, name)()
                home = torch.device("cpu") if protocol_here else there.protocol.home
                kinds = {there.device.type, home.type if home else there.device.type}
                same(found, expected, kinds, entry.slack)
        except Exception as error:
            if not (protocol_here and "move one of them" in str(error)):
                wrong[name] = traceback.format_exc()
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    only = [a for a in sys.argv[1:] if not a.startswith("-")]
    folders = sorted({one.split(".")[0] for one in only})
    listed = entries(*folders)
    if only:
        listed = {name: each for name, each in listed.items() if any(o in name for o in only)}
    ways = [each for each in sys.argv if each in DEFAULTS] or ["--there"]
    found = {
        f"{name} {way}": run(each, DEFAULTS[way], way == "--rows")
        for way in ways
        for name, each in listed.items()
    }
    if "--json" in sys.argv:
        print(json.dumps(found))
    else:
        for name, wrong in found.items():
            for part, trace in wrong.items():
                lines = trace.strip().splitlines()
                if "-v" in sys.argv:
                    print(trace)
                where = [
                    each.split("torchdp/")[-1]
                    for each in lines
                    if "/torchdp/" in each or "/kernels/" in each
                ]
                print(f"{name}: {part}: {lines[-1][:300]}\n      {' <- '.join(where[:-4:-1])}")
        print(len(found), "entries", sum(map(bool, found.values())), "wrong")
