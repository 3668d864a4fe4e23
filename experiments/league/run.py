"""League table: the same work at the same privacy by this package and by published ones, each as it
is installed.

Papers: Kairouz, Oh, Viswanath (2014); Wang, Blocki, Li, Jha (2017); Ye, Barg (2018); Acharya, Sun,
Zhang (2019); Balle,
    Wang (2018); Edmonds, Nikolov, Ullman (2020); Doroshenko, Ghazi, Kamath, Kumar, Manurangsi
    (2022); Asi, Feldman, Talwar (2022); Choquette-Choo, McMahan, Rush, Thakurta (2023); McKenna,
    Miklau, Sheldon (2021).
Command:  python experiments/league/run.py [--quick] [--only opendp jax-privacy]
[--rows ridge "sampled sums"]
What: peers are installed by pip into environments of their own (results/league/environments,
--environments); what
    does not install or run is named. Every side runs in its own process on one thread; in each turn
    every side does all of its rows once. Errors and guarantees are computed from the answers by
    code that is the same for all (rows.py). mended: the error of shares clipped at 0 and
    normalised, as multi-freq-ldpy returns them; others' shares are treated so too. seen: what the
    guarantee is checked by. A new row is an entry of rows.py and a function in each of
    sides/by_<peer>.py.
Expected: experiments/bench/league_cpu.md. Ours is the fastest side of 13 of the 17 rows that have
another one. Slower:
    ridge (diffprivlib and scikit-learn, a fifth and less of the time), 1e9 users
    (numpy by hand, 0.1 ms for 1.4), one clipped step (opacus by ghost clipping, a third of the
    time: one call, which pays for the checks of the first batch), consistent marginals (mbi, a
    quarter). dp-accounting's epsilon of sampled sums is 0.05 % less, opendp's noise is exact where
    ours is rounded. Raw shares have the same error on all sides; diffprivlib's ridge has 29 times
    the error, for a guarantee without delta. Two promises do not hold to the last digit: autodp's
    calibrated noise is 3.5e-9 too small, one of opacus's clipped gradients is 4e-8 longer than its
    bound. Where another side does better than ours, the page says so.
Output: results/league/run/turns.csv, league.csv and league.md (--keep:
experiments/bench/league_cpu.*).
Artifact: peers | the same work side by side
Status: 18 rows, 13 peers, on a CPU
Time: six minutes of one core after the installs, which take some minutes and 7 GB; --smoke in
    seconds, with no peer. On the CPU, whatever --device says.
"""

import contextlib
import datetime
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rows import ABSENT, PEERS, ROWS, SIDES

from torchdp.simulate import Experiment

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ("error", "mended", "seconds", "MiB", "seen")  # of a turn
FEW = {"error": 1e-6, "MiB": 10.0}  # what is less is not held against others
OURS = "torchdp"
LONGEST = 600  # seconds of a side's process
THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@dataclass(frozen=True)
class Config:
    only: tuple[str, ...] = tuple(PEERS)  # ours is always there
    rows: tuple[str, ...] = tuple(row.name for row in ROWS)
    turns: int = 5
    quick: bool = False  # small sizes
    environments: Path = Path("results/league/environments")
    keep: bool = False  # as experiments/bench/league_cpu.*


def script(name):
    return SIDES / f"by_{name.replace('-', '_')}.py"


def installed(peer, folder):
    """Python of the peer's environment, made where it is missing. OSError: pip's last line."""
    home = folder.absolute() / peer
    python = home / "bin" / "python"
    done = home / "installed"
    wanted = "\n".join(PEERS[peer].installs)
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        for packages in PEERS[peer].installs:
            command = [python, "-m", "pip", "install", *packages.split()]
            pip = subprocess.run(command, capture_output=True, text=True)
            if pip.returncode:
                raise OSError(last_line(pip.stderr, "pip failed"))
        done.write_text(wanted)
    return python


def last_line(text, otherwise):
    lines = text.strip().splitlines() or [otherwise]
    return lines[-1][:200]


def settings(row, config):
    return {**row.settings, **(row.quick if config.quick else {})}


def answers(name, python, rows, config):
    """What a side's process says of these rows; a row of which it says nothing failed."""
    asked = [[row.name, settings(row, config), dict(row.warm)] for row in rows]
    environment = {**os.environ, **THREADS, "PYTHONPATH": str(ROOT) if name == OURS else ""}
    command = [python, script(name), json.dumps(asked)]
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LONGEST
        )
        printed = child.stdout
        why = last_line(child.stderr, f"exit {child.returncode}")
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode()
        why = f"more than {LONGEST} s"
    # packages print lines of their own
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    answers_by_row = {line["row"]: line for line in lines}
    for row in rows:
        yield row, answers_by_row.get(row.name, {"failed": why})


def version():
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "torchdp", "kernels"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def measure(config, report):
    pythons = {OURS: Path(sys.executable)}
    failed = {}
    chosen = [row for row in ROWS if row.name in config.rows]
    unknown = {*config.only} - {*PEERS} | {*config.rows} - {row.name for row in ROWS}
    if unknown:
        raise ValueError(
            f"only and rows must name peers and rows of rows.py, not {sorted(unknown)}"
        )
    for peer in config.only:
        if any(peer in row.sides for row in chosen):
            try:
                pythons[peer] = installed(peer, config.environments)
            except OSError as error:
                failed[peer, ""] = f"not installed: {error}"
    turns = []
    for turn in range(config.turns):
        for name, python in pythons.items():
            rows = [row for row in chosen if name in row.sides and (name, row.name) not in failed]
            for row, said in answers(name, python, rows, config) if rows else ():
                if "failed" in said:
                    failed[name, row.name] = said["failed"]
                    continue
                verdict = row.judge(said["answer"], said["check"], **settings(row, config))
                turns.append(
                    {
                        "row": row.name,
                        "side": name,
                        "turn": turn,
                        "version": said["version"] or version(),
                        "seconds": said["seconds"],
                        "MiB": said["MiB"],
                        **verdict,
                        "load": os.getloadavg()[0],
                    }
                )
    table = []
    for row in chosen:
        table += summary(row, [turn for turn in turns if turn["row"] == row.name])
    report.write("turns", turns)
    report.write("league", table)
    missing = [f"{', '.join(filter(None, key))}: {why}" for key, why in failed.items()]
    text = page(table, missing, max(turn["load"] for turn in turns))
    (report.folder / "league.md").write_text(text, encoding="utf-8")
    report.say(text)
    if config.keep:
        kept_as = ROOT / "experiments" / "bench" / "league_cpu"
        for kind in ("md", "csv"):
            shutil.copy(report.folder / f"league.{kind}", kept_as.with_suffix(f".{kind}"))


def summary(row, turns):
    """A line for each side: medians of seconds and MiB, root mean squares of errors, mean of seen.

    steady: the error is the same in all turns.
    """
    for name, how in row.sides.items():
        mine = [turn for turn in turns if turn["side"] == name]
        if not mine:
            continue
        column = {key: [turn[key] for turn in mine if turn[key] is not None] for key in NUMBERS}
        errors = column["error"]
        same = len(set(errors)) == 1
        seen = statistics.fmean(column["seen"]) if column["seen"] else None
        yield {
            "row": row.name,
            "what": row.error,
            "side": name,
            "version": mine[0]["version"],
            "error": errors[0] if same else average(errors),
            "steady": same and len(mine) > 1,
            "mended": average(column["mended"]),
            "seconds": middle(column["seconds"]),
            "MiB": middle(column["MiB"]),
            "turns": len(mine),
            "check": row.seen,
            "seen": seen,
            "holds": None if seen is None else seen <= row.promised + row.slack,
            "how": how,
        }


def middle(values: list[float]):
    return statistics.median(values) if values else None


def average(values: list[float]):
    return math.sqrt(statistics.fmean(value * value for value in values)) if values else None


def losses(table):
    """Where another side has a lower error than by chance, less time, or half of the memory."""
    ours = {line["row"]: line for line in table if line["side"] == OURS}
    for line in table:
        if line["side"] == OURS or line["row"] not in ours:
            continue
        own = ours[line["row"]]
        shares = {"error": 0.9999 if own["steady"] else 0.9, "seconds": 1.0, "MiB": 0.5}
        for key, share in shares.items():
            theirs = line[key]
            mine = own[key]
            if None not in (theirs, mine) and mine > FEW.get(key, 0.0) and theirs < share * mine:
                numbers = f"{line['side']} {theirs:.6g}, ours {mine:.6g}"
                yield f"{line['row']}, {key}: {numbers} ({line['how']})"


def short(table):
    """A line for each row: ours beside the fastest other, with the times and errors of both."""
    yield "| row | counted | ours | s | fastest other | error | s | times ours |"
    yield "|---|---|---|---|---|---|---|---|"
    for ours in (line for line in table if line["side"] == OURS):
        others = [line for line in table if line["row"] == ours["row"] and line["side"] != OURS]
        if others:
            other = min(others, key=lambda line: line["seconds"])
            key = "error" if None not in (ours["error"], other["error"]) else "mended"
            counted = ours["what"] if key == "error" else ours["what"].replace("raw", "mended")
            yield (
                f"| {ours['row']} | {counted} | {ours[key]:.4g} | {ours['seconds']:.2g} | {other['side']} "
                f"| {other[key]:.4g} | {other['seconds']:.2g} | {other['seconds'] / ours['seconds']:.3g} |"
            )


def page(table, missing, load):
    """The table in Markdown."""
    cores = os.cpu_count() or 1
    slacks = {row.name: row.slack for row in ROWS}
    busy = f"load at most {load:.1f}"
    if load > cores / 2 + 0.5:
        busy += ": loaded, compare ratios"
    turns = max(line["turns"] for line in table)
    lines = [
        "# League table", "",
        "Written by `python experiments/league/run.py --keep`, where each column is explained. "
        f"{datetime.date.today()}, {processor()}, {cores} cores, one thread, Python {platform.python_version()}, "
        f"{busy}. Processor seconds: medians of {turns} turns in which every side takes part. Less is better.", "",
        *short(table), "", "## Every side", "",
        "| row | counted | side | error | mended | s | MiB | guarantee checked | trust, arithmetic |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    last = ""
    for line in table:
        verdict = "not checked"
        if line["holds"] is not None:
            digits = 1 - math.floor(math.log10(slacks[line["row"]]))
            seen = f"{line['seen']:.{digits}f}"
            verdict = f"{line['check']} {seen}: {'holds' if line['holds'] else '**does not hold**'}"
        cells = [line["row"], line["what"]] if line["row"] != last else ["", ""]
        last = line["row"]
        cells.append(f"{line['side']} {line['version']}")
        numbers = zip(NUMBERS[:4], (".6g", ".3g", ".3g", ".3g"), strict=True)
        cells += ["" if line[key] is None else format(line[key], form) for key, form in numbers]
        lines.append("| " + " | ".join([*cells, verdict, line["how"]]) + " |")
    purposes = [f"{name}: {peer.purpose}" for name, peer in PEERS.items()]
    absent = [f"{name}: {why}" for name, why in ABSENT.items()]
    lines += listed("Where another side does better than ours:", losses(table))
    lines += listed("What each was built for:", purposes)
    lines += listed("Missing:", missing + absent)
    return "\n".join(lines) + "\n"


def listed(title, items: Iterable[str]):
    return ["", title, "", *[f"- {item}" for item in items]]


def processor():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.machine()


EXPERIMENT = Experiment(measure, Config(), Config(only=(), turns=1, quick=True))

if __name__ == "__main__":
    EXPERIMENT.main()
