"""What one verb of `ipamctl` consists of, and the exit statuses.

0  answered            2  wrong usage or settings        3  the daemon does not answer
1  answered, and somebody must look: not ready, a violation   4  the daemon refused the question

Light to import: a verb's module may import nothing heavy at its top (grpc costs 75 ms), because every call of `ipamctl` imports
them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator
from collections.abc import Sequence

EXIT_ATTENTION = 1
EXIT_USAGE = 2
EXIT_AWAY = 3
EXIT_REFUSED = 4

LAST = 100

Answer = dict[str, Any]
"""A reply as JSON has it: every field present, in the words of the proto."""


class VerbError(Exception):
    """A verb has no answer: the message is for the operator, `exit_status` for the shell."""

    def __init__(self, message: str, *, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Ask(Protocol):
    """Asks the daemon one RPC of `vpc_ipamd.v1.Introspection`."""

    def __call__(self, rpc: str, **fields: object) -> Answer:
        """Send `rpc` with the fields of its request. Raises: VerbError if there is no answer."""
        ...


def no_arguments(_parser: ArgumentParser) -> None:
    """Add nothing: the verb stands alone."""


def always_ok(_answer: Answer) -> int:
    """Any answer is a success."""
    return 0


class Verb(NamedTuple):
    """One verb.

    help: its line in `ipamctl --help`.
    ask: gets the answer, given the daemon and the parsed arguments.
    render: writes the answer as text for people; `-o json` prints the answer itself.
    arguments: adds the verb's own arguments to its parser.
    exit_status: the exit status for an answer.
    position: place in the help; verbs of the same position follow in alphabetical order.
    asks_daemon: whether it is answered by the daemon; False for a verb that does the work itself.
    stream: yields answers until it is interrupted, instead of one `ask`; each is rendered and printed as it comes.
    """

    help: str
    ask: Callable[[Ask, Namespace], Answer]
    render: Callable[[Answer], str]
    arguments: Callable[[ArgumentParser], None] = no_arguments
    exit_status: Callable[[Answer], int] = always_ok
    position: int = LAST
    asks_daemon: bool = True
    stream: Callable[[Ask, Namespace], Iterator[Answer]] | None = None


def subject_argument(parser: ArgumentParser) -> None:
    """Add the arguments of verbs about one address, pod or sandbox, now or in the past."""
    parser.add_argument(
        "subject",
        metavar="ADDRESS|POD|CONTAINER_ID",
        help="an address, a pod as namespace/name or by its name, or a container ID or its beginning",
    )
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="nothing older: 2h, 3d, or RFC 3339 (UTC if it names no zone)"
    )
    parser.add_argument("--at", type=moment, metavar="TIME", help="who had it then: 2h (ago), 3d, or RFC 3339")
    parser.add_argument(
        "--history-dir",
        default="",
        metavar="DIR",
        help="the file's directory, read when the daemon is away (default: the setting's)",
    )


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment(text: str) -> str:
    """Read a time of the past: a duration before now, or RFC 3339. Returns: RFC 3339. Raises: ArgumentTypeError."""
    from argparse import ArgumentTypeError
    from datetime import UTC, datetime, timedelta

    count, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS_S and count.isascii() and count.isdigit():
            return (datetime.now(UTC) - timedelta(seconds=int(count) * _UNITS_S[unit])).isoformat()
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text[:40]!r} is neither a duration (30m, 2h, 3d) nor an RFC 3339 time") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).isoformat()


# Tables for people: plain text, columns as wide as their content, nothing cut off.


STATE_COLUMNS = ("assigned", "reserved", "cooling", "quarantined", "free")
"""Address states in the order of PoolCounts.__str__: one order everywhere."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows under a header; every row as long as the header."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
