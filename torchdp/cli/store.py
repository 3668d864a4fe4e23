"""``torchdp status``, ``report`` and ``merge``: what a store holds."""

import argparse
import time
from pathlib import Path

from torchdp import simulate
from torchdp.simulate.page import write_page
from torchdp.simulate.progress import Progress
from torchdp.simulate.progress import status as status_of
from torchdp.text import say


def _store(given: str) -> Path:
    path = Path(given)
    return path / "results.jsonl" if path.is_dir() else path


def status(options: argparse.Namespace) -> int:
    """Prints a line for each configuration, and one for all."""
    stand = status_of(_store(options.store))
    say(*map(_line, stand.progress))
    ends = ""
    if stand.seconds_left is not None:
        at = time.strftime("%H:%M", time.localtime(time.time() + stand.seconds_left))
        ends = f"; about {stand.seconds_left:,.0f} s left, until {at}"
    running = {0: "nothing running", 1: "1 sweep running"}.get(stand.running, f"{stand.running} sweeps running")
    done, failed = stand.count("done"), stand.count("failed")
    say(f"{done} of {len(stand.progress)} done, {failed} failed, {running}{ends}")
    return 0


def _line(each: Progress) -> str:
    moments = each.row.moments
    spread = f"+- {moments.relative_half_width():.2%}" if moments.count > 1 else ""
    config = " ".join(f"{key}={value}" for key, value in each.row.config.items())
    return f"{each.state:6}  {moments.count:>14,} trials  {spread:>12}  {config}  {each.row.error or ''}".rstrip()


def report(options: argparse.Namespace) -> int:
    """Writes the page; prints its files."""
    store = _store(options.store)
    out = Path(options.out) if options.out else store.with_name("report.html")
    say(*write_page(store, out, options.title or ""))
    return 0


def merge(options: argparse.Namespace) -> int:
    """Adds stores to one; prints how many blocks were new."""
    say(f"{simulate.merge(options.stores, options.into)} new blocks in {options.into}")
    return 0
