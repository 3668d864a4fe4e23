"""The command line. Bad input: a line on stderr, exit code 2.

Here stand the options alone, so that ``--help`` imports nothing heavy; each command is a function
of its name. Read on:

- ``table``: a table of users becomes numbers, or bins on public bounds; errors never show a value;
- ``questions``, ``statistics``: what can be asked, by which protocol, and how it is read;
- ``estimate``: ``torchdp estimate`` and ``plan``, whose guarantee is that of the chosen protocol;
- ``sweep``: ``torchdp sweep``, ``report``, ``merge``, over :mod:`torchdp.simulate`;
- ``doctor``: what is installed here.
"""

import argparse
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from torchdp.text import integer, number, say, until_closed

# What each takes as columns, and the choices of options: written out here, since the modules that
# answer import torch, and --help must be instant.
STATISTICS = {
    "auc": "SCORE LABEL",
    "concordance": "TIME EVENT SCORE",
    "correlation": "two numbers",
    "covariance": "two numbers or more",
    "energy-distance": "NUMBER LABEL",
    "gamma": "two numbers",
    "gini": "one number",
    "gini-diversity": "one category",
    "gini-mean-difference": "one number",
    "histogram": "one number, or one category with --categories",
    "kendall": "two numbers",
    "kendall-b": "two numbers",
    "mann-whitney": "SCORE LABEL",
    "mean": "one number",
    "median": "one number",
    "mmd": "NUMBER LABEL",
    "quantiles": "one number",
    "spearman": "two numbers",
}
# Of commands that have no module of their own name.
MODULES = {"merge": "sweep", "plan": "estimate", "report": "sweep"}
# What is said where a file cannot be read.
WANTED = {
    "torchdp estimate": "; --csv takes a table with a header, or - for stdin",
    "torchdp merge": "; it takes stores, the results.jsonl of sweeps",
    "torchdp report": "; it takes the results.jsonl of a sweep, or its folder",
}
TRUST = ("local", "shuffle", "curator")
PROTOCOLS = ("one-message", "randomized-response", "two-message")


def parser() -> argparse.ArgumentParser:
    """The arguments; imports nothing heavy, so that --help is instant."""
    top = argparse.ArgumentParser(
        prog="torchdp", description="Differentially private mechanisms in PyTorch."
    )
    # Imported already, as the package that this module is in.
    version = sys.modules["torchdp"].__version__
    top.add_argument("--version", action="version", version=f"torchdp {version}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _estimate(commands)
    _plan(commands)
    _sweep(commands)
    _stores(commands)
    _doctor(commands)
    return top


def _estimate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    estimate = commands.add_parser(
        "estimate",
        help="statistics of your own table, under differential privacy",
        description="Prints what may be published of a table of everybody's rows. Whoever holds "
        "such a table is the curator (--trust curator): noise protects the output "
        "alone. With --trust local every row is randomized as its user would, before "
        "anything is computed.",
    )
    add = estimate.add_argument
    # Not required of argparse, whose refusal would not name the command that needs no table.
    add("--csv", metavar="FILE", help="a table with a header; a row is a user; - reads stdin")
    _question(estimate)
    add(
        "--bounds-from-data",
        action="store_true",
        help="take the ranges from the data instead: NOT PRIVATE, for trying out only",
    )
    trust = "who is trusted with the rows (default: curator: whoever holds the table)"
    add("--trust", choices=TRUST, default="curator", help=trust)
    add("--group", metavar="COLUMN", help="answers for each value of this public column")
    _estimate_table(estimate)
    add(
        "--population",
        action="store_true",
        help="intervals for the population that the users are a random sample from (default: for "
        "these users)",
    )
    add("--level", type=number, default=0.95, help="of the confidence interval (default: 0.95)")
    add("--seed", type=integer, help="repeatable noise: NOT PRIVATE, for trying out only")


def _plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    plan = commands.add_parser(
        "plan",
        help="how many users statistics take, for each who may be trusted",
        description="Needs no table: prints, for the local model, a shuffler or a curator, how "
        "many of them "
        "make the predicted standard error at most --error, or the error of --users.",
    )
    _question(plan)
    add = plan.add_argument
    add("--trust", choices=TRUST, help="one of them alone")
    add(
        "--error",
        type=number,
        help="in the statistic's unit (quantiles, histogram: in shares of users)",
    )
    add("--users", type=integer, metavar="N")
    # Those that asking reads of either command, and that have no meaning without a table.
    plan.set_defaults(bounds_from_data=False, population=False, other=None)


def _question(command: argparse.ArgumentParser) -> None:
    """What is asked, and at which privacy."""
    add = command.add_argument
    add(
        "--statistic",
        required=True,
        nargs="+",
        action="extend",
        choices=STATISTICS,
        metavar="NAME",
        help=f"several are answered together, under one epsilon: {', '.join(STATISTICS)}",
    )
    columns = "; ".join(f"{name}: {columns}" for name, columns in STATISTICS.items())
    add("--columns", required=True, nargs="+", metavar="NAME", help=columns)
    add("--epsilon", required=True, type=number, help="privacy budget of one user, > 0")
    delta = (
        "of shuffle and curator (default: the largest power of ten that is at most 1/(10 users))"
    )
    add("--delta", type=number, help=delta)
    add(
        "--bounds",
        nargs="+",
        default=[],
        metavar="NAME=LOW:HIGH",
        help="public range of each numeric column, known without looking at the data; of dates two "
        "days, such as 2024-01-01:2024-12-31: they are counted in days from the first",
    )
    add("--bins", type=integer, help="equal bins for each number (default: 32, or fewer)")
    add("--categories", metavar="A,B,...", help="the public list of a column's categories")
    shares = "quantiles: of these shares, such as .25 .5 .75"
    add("--quantiles", nargs="+", type=number, metavar="SHARE", help=shares)
    for name, default in (("--positive", "1"), ("--negative", "0")):
        words = f"the label that counts as {default} (default: {default})"
        add(name, metavar="VALUE", default=default, help=words)
    add(
        "--protocol",
        choices=("auto", "best", *PROTOCOLS),
        default="auto",
        help="auto: the least predicted error, blind to the data, in a few seconds; best: of more "
        "than 64 types also protocols that are optimised for the statistic, up to half a "
        "minute; the others: --trust local",
    )
    add("--json", action="store_true", help="print one JSON object")


def _estimate_table(estimate: argparse.ArgumentParser) -> None:
    """How the table is read."""
    add = estimate.add_argument
    add("--delimiter", metavar="C", default=",", help="such as ';' or tab (default: ,)")
    add("--decimal", choices=(".", ","), default=".", help="of numbers (default: .)")
    add("--encoding", default="utf-8-sig", help="of the table, such as latin-1 (default: UTF-8)")
    add(
        "--missing",
        choices=("refuse", "drop"),
        default="refuse",
        help="a cell that is empty or NA, NaN, null, none, -, ., ?: refuse the table (default), "
        "or leave out the row",
    )
    add(
        "--out-of-bounds",
        choices=("refuse", "clip", "drop"),
        default="refuse",
        help="a number beyond its bounds: refuse the table (default), move it to the bound, or "
        "leave out the row",
    )
    add(
        "--other",
        metavar="NAME",
        help="of --categories, added to them: what all other cells count as (default: refused)",
    )


def _sweep(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sweep = commands.add_parser(
        "sweep",
        help="an experiment's grid: measure, store, draw; resumes where it stopped",
        description="Runs the grid of a script under experiments/; writes results.jsonl, "
        "results.csv and figures.",
    )
    add = sweep.add_argument
    add("experiment", metavar="SCRIPT.py", help="a file that defines experiment(smoke)")
    add("--out", metavar="FOLDER", help="default: results/NAME")
    add("--seed", type=integer, default=0, help="of the whole run (default: 0)")
    add("--trials", type=integer, help="for each configuration (default: the script's)")
    add(
        "--target-relative-ci", type=number, help="stop a configuration earlier, at this half-width"
    )
    where = sweep.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        help="where the trials run, such as cuda:1 or cpu (default: every CUDA device, else cpu)",
    )
    where.add_argument(
        "--devices",
        metavar="A,B,...",
        help="a worker process for each, such as cuda:0,cuda:1 or cpu,cpu; rows do not depend on "
        "their number",
    )
    add(
        "--cluster",
        metavar="ADDRESS",
        help="the workers of Dask's scheduler at this address (tcp://host:8786); --device is "
        "theirs",
    )
    add(
        "--shard",
        metavar="I/N",
        help="measure every N-th block, from block I on (0/4 ... 3/4), into this folder's store; "
        "or env: as the array of SLURM, or torchrun's rank, says. Then: torchdp merge. Sweeps "
        "on one folder need no shards",
    )
    add("--smoke", action="store_true", help="a small grid, in seconds")
    add(
        "--other-code",
        choices=("refuse", "keep", "again"),
        default="refuse",
        help="blocks stored by another version of the script, torchdp or torch: refuse to go on "
        "(default); keep the configurations that are complete and measure the rest; measure "
        "all again. They are never merged",
    )
    add("--stop-on-error", action="store_true", help="let one bad configuration stop the others")
    only = sweep.add_mutually_exclusive_group()
    only.add_argument(
        "--measure-only", action="store_true", help="no figures: the store and the table alone"
    )
    only.add_argument(
        "--draw-only", action="store_true", help="draw from the stored results, measure nothing"
    )


def _stores(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    merge = commands.add_parser(
        "merge",
        help="several stores in one",
        description="Adds the finished blocks of stores (results.jsonl) to one; then torchdp "
        "sweep --draw-only.",
    )
    merge.add_argument("into", metavar="INTO.jsonl")
    merge.add_argument("stores", nargs="+", metavar="STORE.jsonl")
    report = commands.add_parser(
        "report",
        help="a page of a sweep's results: figures, tables, failures, how it was made",
        description="Writes report.html, with everything inside, from a store alone.",
    )
    report.add_argument("store", metavar="STORE", help="results.jsonl, or its folder")
    report.add_argument("--out", metavar="FILE.html", help="default: report.html beside the store")
    report.add_argument("--title")


def _doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what is installed, which kernels run on this machine, and why not",
        description="Tries every kernel against its reference.",
    )
    doctor.add_argument(
        "--device", help="such as cuda:1 or cpu (default: the first CUDA device, else the CPU)"
    )
    interpreted = "try the fused kernels on the CPU, in Triton's interpreter"
    doctor.add_argument("--interpret", action="store_true", help=interpreted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    command = "torchdp"
    try:
        with until_closed(), warnings.catch_warnings():
            # Of the libraries below: who runs a command can do nothing about them.
            warnings.simplefilter("ignore", DeprecationWarning)
            # One line, without the file and the line of source that Python adds.
            warnings.showwarning = lambda message, *where: say(f"{command}: {message}", error=True)
            # In here, since --help writes too, and its reader may leave early.
            options = parser().parse_args(arguments)
            command = f"torchdp {options.command}"
            module = import_module(f"torchdp.cli.{MODULES.get(options.command, options.command)}")
            return int(getattr(module, options.command)(options))
    # What bad input raises, and what is lacking here. Anything else is a fault of ours: its
    # traceback is wanted.
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename}: {error.strerror}"  # without its number
            said += WANTED.get(command, "")
        say(f"{command}: {' '.join(said.split())}", error=True)
        return 2
    except KeyboardInterrupt as stop:
        number = signal.SIGINT
        # ``stopped_cleanly`` raises it with the signal that came; Ctrl-C brings none.
        if stop.args and isinstance(stop.args[0], signal.Signals):
            number = stop.args[0]
        by = f" by {number.name}" if number != signal.SIGINT else ""
        kept = "; finished blocks are kept" if command == "torchdp sweep" else ""
        say(f"{command}: interrupted{by}{kept}", error=True)
        return 128 + number  # as a shell says it: 130, 138, 143
