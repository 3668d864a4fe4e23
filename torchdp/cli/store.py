"""``torchdp report`` and ``merge``: what a store holds."""

import argparse
from pathlib import Path

from torchdp import simulate
from torchdp.simulate.page import write_page
from torchdp.text import say


def report(options: argparse.Namespace) -> int:
    """Writes the page; prints its files."""
    given = Path(options.store)
    store = given / "results.jsonl" if given.is_dir() else given
    out = Path(options.out) if options.out else store.with_name("report.html")
    say(*write_page(store, out, options.title or ""))
    return 0


def merge(options: argparse.Namespace) -> int:
    """Adds stores to one; prints how many blocks were new."""
    say(f"{simulate.merge(options.stores, options.into)} new blocks in {options.into}")
    return 0
