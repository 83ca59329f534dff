"""`ipamd clean-up`: remove our tables, rules and routes from a node that has gone back to amazon-vpc-cni-k8s (docs/migration.md).

The command runs only if no daemon of ours runs and amazon-vpc-cni-k8s serves the node. Otherwise pods would lose SNAT or
confinement, or the running daemon would make the removed objects again. The daemon's pod has left the node by then, so the command
runs in a debug pod with our image, on the node's network and with the node's files below a directory.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from ipamd import __version__
from ipamd.command_line import Parser
from ipamd.kernel.leftovers import Leftover, clean_up
from ipamd.migration.aws_node import TCP_ADDRESS
from ipamd.migration.listener import is_aws_node, is_served_by_another
from ipamd.model.errors import IpamError, SettingsError, TakeoverError, log_text
from ipamd.model.failures import FailureCode, failure
from ipamd.model.words import printable
from ipamd.process.host_root import below
from ipamd.rpc.run_dir import LOCK_NAME
from ipamd.settings import Settings, load

EXIT_KEPT = 1
"""Exit status if objects are left, because pods that our daemon wired need them. The command must be run again when these pods are
gone."""

EXIT_REFUSED = 2
"""Exit status if the node has not gone back to amazon-vpc-cni-k8s, if a setting or an argument is wrong, or if a removal failed."""

SETTINGS = (
    "AWS_VPC_K8S_CNI_VETHPREFIX",
    "VPC_IPAMD_RUN_DIR",
    "VPC_IPAMD_CONFLIST_FILE",
    "VPC_IPAMD_AWS_NODE_CONFLIST_FILE",
    "VPC_IPAMD_AWS_NODE_SOCKET",
)
"""The settings of the daemon that the command reads. It ignores all other settings, so that an invalid value of one of
them cannot prevent a clean-up."""

PROGRAM = "ipamd clean-up"


def main(arguments: Sequence[str], *, is_served_by_other: Callable[[Settings], bool] | None = None) -> int:
    """Run the command. Returns: the exit status. Raises: SystemExit with 2 for wrong arguments, with 0 after --help or --version.

    `is_served_by_other`: returns whether amazon-vpc-cni-k8s answers on this node. If it is None, the sockets of that daemon are tried.
    """
    options = make_parser().parse_args(arguments)
    try:
        settings = _settings(options.host_root)
        _require_gone_back(settings, is_served_by_other or _is_served_by_other)
        lines = _removed_conflist(settings, is_dry_run=options.dry_run)
        leftovers = clean_up(veth_prefix=settings.network.veth_prefix, is_dry_run=options.dry_run)
    except IpamError as error:
        print(f"{PROGRAM}: {printable(log_text(error))}", file=sys.stderr)  # noqa: T201
        return EXIT_REFUSED
    lines += [_line(leftover, is_dry_run=options.dry_run) for leftover in leftovers]
    print("\n".join(lines) or "nothing of ours is left")  # noqa: T201
    if any(leftover.kept_reason for leftover in leftovers):
        return EXIT_KEPT
    return 0


def make_parser() -> Parser:
    """Make the parser of the command."""
    parser = Parser(
        prog=PROGRAM,
        description="Remove vpc-ipamd's nftables tables, rules, routes and conflist from a node that has gone back to "
        "amazon-vpc-cni-k8s. What pods of ours still need stays, and the exit status is 1: run it again when they are gone.",
        epilog="Example: ipamd clean-up --dry-run",
    )
    parser.add_argument("--version", action="version", version=f"ipamd {__version__}")
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    parser.add_argument(
        "--host-root", default="", metavar="DIR", help="where the node's files are, in a debug pod /host (default: here)"
    )
    return parser


def _settings(host_root: str) -> Settings:
    """Read the settings that SETTINGS names, and move their paths below the directory `host_root`. All other settings have defaults.

    Raises: SettingsError.
    """
    environment = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    settings = load(environment)
    if not host_root:
        return settings
    if not Path(host_root).is_absolute():
        raise failure(
            SettingsError, FailureCode.SETTINGS_WRONG, count=1, problems=f"--host-root {host_root!r} is no absolute path"
        )
    paths = {
        "VPC_IPAMD_RUN_DIR": str(settings.daemon.run_dir),
        "VPC_IPAMD_CONFLIST_FILE": str(settings.daemon.conflist_path),
        "VPC_IPAMD_AWS_NODE_SOCKET": settings.takeover.daemon_socket,
        "VPC_IPAMD_AWS_NODE_CONFLIST_FILE": settings.takeover.conflist,
    }
    on_node = {name: str(below(Path(host_root), PurePosixPath(path))) for name, path in paths.items() if path.startswith("/")}
    return load(environment | on_node)


def _require_gone_back(settings: Settings, is_served_by_other: Callable[[Settings], bool]) -> None:
    """Check that no daemon of ours runs, and that amazon-vpc-cni-k8s serves the node. Raises: TakeoverError."""
    if _is_locked(settings.daemon.run_dir / LOCK_NAME):
        raise failure(TakeoverError, FailureCode.CLEAN_UP_DAEMON_RUNS, path=settings.daemon.run_dir)
    theirs = settings.takeover.conflist_beside(settings.daemon.conflist_path)
    if not theirs.exists():
        raise failure(TakeoverError, FailureCode.CLEAN_UP_NO_CONFLIST, path=theirs)
    if not is_served_by_other(settings):
        raise failure(TakeoverError, FailureCode.CLEAN_UP_NOT_SERVED, socket=settings.takeover.daemon_socket)


def _is_locked(path: Path) -> bool:
    """Whether a daemon of ours runs and holds its lock; False also if the lock file cannot be opened, for example if there is none.

    A lock belongs to the file, so it is seen through any mount of the directory.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_served_by_other(settings: Settings) -> bool:
    return is_served_by_another(settings.takeover.daemon_socket) or is_aws_node(TCP_ADDRESS)


def _removed_conflist(settings: Settings, *, is_dry_run: bool) -> list[str]:
    """Remove our conflist, if it exists. An export leaves it on a node on which amazon-vpc-cni-k8s had never run.

    Returns: a line for the output; [] if there is no conflist of ours. Raises: TakeoverError.
    """
    ours = settings.daemon.conflist_path
    if not ours.exists():
        return []
    if is_dry_run:
        return [f"would remove {ours}"]
    try:
        ours.unlink(missing_ok=True)
    except OSError as error:
        raise failure(TakeoverError, FailureCode.CLEAN_UP_CONFLIST_STAYS, path=ours, cause=error.strerror) from error
    return [f"removed {ours}"]


def _line(leftover: Leftover, *, is_dry_run: bool) -> str:
    if leftover.kept_reason:
        return f"kept {leftover.name}: {leftover.kept_reason}"
    verb = "would remove" if is_dry_run else "removed"
    return f"{verb} {leftover.name}"
