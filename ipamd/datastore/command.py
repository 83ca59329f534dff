"""`ipamd datastore`: show the level of the datastore's file, and take it back for an earlier release.

For the operator who goes back further than one release (docs/datastore.md, "The datastore's schema"). The level is shown beside a
daemon too; taking it back works only while none has the file: SQLite's lock says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ipamd.datastore.disk import Disk
from ipamd.datastore.migrations import LEVEL, LEVEL_OF_FILES_WITHOUT_ONE, STEPS, downgrade, level_of
from ipamd.model.errors import DatastoreError, IpamError, log_text
from ipamd.model.words import printable
from ipamd.settings import load

EXIT_REFUSED = 1


def main(arguments: Sequence[str]) -> int:
    """Run `ipamd ARGUMENTS`; returns the exit status, 0 or 1. Raises: SystemExit, 2 for wrong arguments, 0 after the usage."""
    parser = argparse.ArgumentParser(
        prog="ipamd", description="The daemon, without arguments; else shows or takes back its datastore."
    )
    parser.add_argument("what", choices=["datastore"])
    parser.add_argument("--file", type=Path, help="the datastore's file (default: state.db in VPC_IPAMD_RUN_DIR)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("level", help="show the file's level, and those that this release knows")
    back = verbs.add_parser("downgrade", help="take the file back to a level, while no ipamd is running")
    back.add_argument("--to", type=int, required=True, metavar="LEVEL", help="the level that the earlier release knows")
    given = parser.parse_args(arguments)
    # Of the environment the run directory only: no other setting may stand in the way.
    named = {name: value for name, value in os.environ.items() if name == "VPC_IPAMD_RUN_DIR"}
    try:
        print(_run(given.file or load(named).daemon.run_dir / "state.db", given.verb, getattr(given, "to", 0)))  # noqa: T201
    except IpamError as error:
        print(f"ipamd datastore: {printable(log_text(error))}", file=sys.stderr)  # noqa: T201
        return EXIT_REFUSED
    return 0


def _run(path: Path, verb: str, to: int) -> str:
    if not path.is_file():
        raise DatastoreError(f"there is no datastore at {path}", details="an earlier release starts with an empty one")
    if verb == "level":  # of a copy: a daemon that runs holds the file, and changes its level at its start only
        with TemporaryDirectory() as copy:
            for end in ("", "-wal"):
                if Path(f"{path}{end}").is_file():
                    shutil.copyfile(f"{path}{end}", f"{copy}/{path.name}{end}")
            return _told(Path(copy) / path.name, path, verb, to)
    return _told(path, path, verb, to)


def _told(file: Path, path: Path, verb: str, to: int) -> str:
    disk = Disk(file, lock_wait_s=0.0)
    try:
        if verb == "downgrade":
            before = downgrade(disk, to=to)
            return f"{path} was of level {before} and is of level {min(before, to)}"
        known = "\n".join(f"  {step.level}  {step.purpose}" for step in STEPS)
        return f"{path} is of level {level_of(disk)}; this release knows {LEVEL_OF_FILES_WITHOUT_ONE} to {LEVEL}:\n{known}"
    except ValueError as error:
        raise DatastoreError(f"{path} has no level that can be read", details=str(error)) from error
    finally:
        disk.close()
