"""`ipamd datastore`: show the schema level of the datastore's file, and downgrade the file for an earlier release.

For operators who go back more than one release (docs/datastore.md, "The datastore's schema"). `level` works while a daemon runs;
`downgrade` fails on SQLite's lock until the daemon has stopped.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ipamd import __version__
from ipamd.command_line import Parser
from ipamd.datastore.disk import Disk
from ipamd.datastore.migrations import LEVEL, OLDEST_LEVEL, STEPS, downgrade, level_of
from ipamd.model.errors import DatastoreError, IpamError, log_text
from ipamd.model.words import printable
from ipamd.settings import load

EXIT_REFUSED = 1

COMMANDS = ("datastore", "clean-up")
"""The commands of `ipamd`. The second is run by `ipamd/process/clean_up.py`, and is here so that a misspelt one is recognised."""


def main(arguments: Sequence[str]) -> int:
    """Run `ipamd ARGUMENTS`.

    Returns: the exit status: 0, or EXIT_REFUSED, with the reason on standard error.
    Raises: SystemExit with status 2 for wrong arguments, with 0 after `--help` or `--version`.
    """
    parser = Parser(
        prog="ipamd",
        description="The daemon, without arguments; else shows or takes back its datastore.",
        epilog="`ipamd clean-up --help`: remove what is left of ours on a node that has gone back to amazon-vpc-cni-k8s. "
        "Example: ipamd datastore level",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("what", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("--file", type=Path, help="the datastore's file (default: state.db in VPC_IPAMD_RUN_DIR)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "level",
        prog="ipamd datastore level",
        help="show the file's level, and those that this release knows",
        description="Show the file's level, and those that this release knows. A daemon may run.",
        epilog="Example: ipamd datastore level",
    )
    back = verbs.add_parser(
        "downgrade",
        prog="ipamd datastore downgrade",
        help="take the file back to a level, while no ipamd is running",
        description="Take the file back to the level of an earlier release, while no ipamd is running.",
        epilog=f"Example: ipamd datastore downgrade --to {LEVEL - 1}",
    )
    back.add_argument("--to", type=int, required=True, metavar="LEVEL", help="the level that the earlier release knows")
    options = parser.parse_args(arguments)
    # Of the settings only VPC_IPAMD_RUN_DIR is read, so that an invalid value of another one cannot prevent a downgrade.
    environment = {name: value for name, value in os.environ.items() if name == "VPC_IPAMD_RUN_DIR"}
    try:
        print(_run(options.file or load(environment).daemon.run_dir / "state.db", options.verb, getattr(options, "to", 0)))  # noqa: T201
    except IpamError as error:
        print(f"ipamd datastore: {printable(log_text(error))}", file=sys.stderr)  # noqa: T201
        return EXIT_REFUSED
    return 0


def _run(path: Path, verb: str, to: int) -> str:
    if not path.is_file():
        raise DatastoreError(f"there is no datastore at {path}", details="an earlier release starts with an empty one")
    if verb == "level":
        # A copy is read, because a running daemon has the file locked. The copy has the right level, because the daemon changes the
        # level only when it starts.
        with TemporaryDirectory() as copy:
            for end in ("", "-wal"):
                if Path(f"{path}{end}").is_file():
                    shutil.copyfile(f"{path}{end}", f"{copy}/{path.name}{end}")
            return _run_on(Path(copy) / path.name, path, verb, to)
    return _run_on(path, path, verb, to)


def _run_on(file: Path, path: Path, verb: str, to: int) -> str:
    disk = Disk(file, lock_wait_s=0.0)
    try:
        if verb == "downgrade":
            before = downgrade(disk, to=to)
            return f"{path} was of level {before} and is of level {min(before, to)}"
        steps = "\n".join(f"  {step.level}  {step.purpose}" for step in STEPS)
        return f"{path} is of level {level_of(disk)}; this release knows {OLDEST_LEVEL} to {LEVEL}:\n{steps}"
    except ValueError as error:
        raise DatastoreError(f"{path} has no level that can be read", details=str(error)) from error
    finally:
        disk.close()
