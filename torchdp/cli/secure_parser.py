"""The arguments of ``torchdp secure``; imports nothing heavy."""

import argparse

from torchdp.text import integer, number

QUESTIONS = ("sum", "gram", "moments", "histogram")


def add_secure(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """``torchdp secure`` and its commands."""
    secure = commands.add_parser(
        "secure",
        help="sums of several organisations' tables by servers that see shares alone: a command for each role",
        description="keys, by every party; open, by one; show and join, by every party; submit by every "
        "organisation, serve by every server, release by the analyst. Killed commands may be given again.",
    )
    roles = secure.add_subparsers(dest="role", required=True, metavar="ROLE")
    keys = roles.add_parser("keys", help="make NAME.key, which stays here, and NAME.pub, which everybody gets")
    keys.add_argument("names", nargs="+", metavar="NAME", help="small letters, digits, hyphens: north, server-0")
    keys.add_argument("--in", dest="into", default=".", metavar="DIRECTORY", help="default: here")
    _open(roles.add_parser("open", help="write the session's file: the question and the parties"))
    show = roles.add_parser("show", help="what a session asks, promises, and its fingerprint")
    join = roles.add_parser(
        "join", help="every party: accept the session whose fingerprint was compared, for ever"
    )
    submit = roles.add_parser("submit", help="an organisation: its rows, with noise, in shares for the servers")
    serve = roles.add_parser("serve", help="a server: hear, agree on who was heard, publish the sum")
    release = roles.add_parser("release", help="the analyst: the answer from the servers' sums")
    for role in (show, join, submit, serve, release):
        role.add_argument("folder", metavar="FOLDER", help="of the session, where all files go")
    for role in (join, submit, serve, release):
        role.add_argument("key", metavar="NAME.key", help="this party's own")
    join.add_argument("--fingerprint", required=True, help="as the others read it, by another channel")
    submit.add_argument("csv", metavar="FILE.csv", help="a table with a header, a row for each client")
    submit.add_argument("--seed", type=integer, help="repeatable noise: NOT PRIVATE, for trying out only")
    for role in (serve, release):
        role.add_argument("--wait", type=number, default=0.0, metavar="SECONDS", help="for others (default: 0)")
    release.add_argument("--ridge", type=number, default=1.0, help="of gram with a label (default: 1)")
    release.add_argument("--json", action="store_true", help="print one JSON object")


def _open(role: argparse.ArgumentParser) -> None:
    role.add_argument("folder", metavar="FOLDER", help="empty, or new")
    role.add_argument("--question", required=True, choices=QUESTIONS)
    role.add_argument("--columns", required=True, nargs="+", metavar="NAME", help="of every organisation's table")
    role.add_argument("--label", metavar="NAME", help="gram: the column that is regressed on the others")
    role.add_argument("--label-bound", type=number, help="gram: labels are cut to it")
    bound = "largest norm of a row (sum: longer ones are refused; gram: shortened), or number"
    role.add_argument("--bound", type=number, help=bound)
    role.add_argument("--orders", nargs="+", type=number, default=[], help="moments: such as 1 2")
    role.add_argument("--categories", metavar="A,B,...", help="histogram: the public list")
    role.add_argument("--epsilon", required=True, type=number)
    delta = "0 (default): discrete Laplace noise; not for gram"
    role.add_argument("--delta", type=number, default=0.0, help=delta)
    corrupt = "clients whose noise one party or coalition may know (default: those of the largest organisation)"
    role.add_argument("--corrupt", type=integer, metavar="N", help=corrupt)
    role.add_argument("--absent", type=integer, default=0, metavar="N", help="clients who may be missing")
    role.add_argument("--servers", required=True, nargs="+", metavar="NAME.pub", help="two or more")
    role.add_argument("--organisations", required=True, nargs="+", metavar="NAME.pub=CLIENTS")
    role.add_argument("--analyst", required=True, metavar="NAME.pub")
