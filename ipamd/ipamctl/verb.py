"""What one verb of `ipamctl` consists of, and the exit statuses.

0  answered            2  wrong usage or settings        3  the daemon does not answer
1  answered, and somebody must look: not ready, a violation   4  the daemon refused the question

Light to import: a verb's module may import nothing heavy at its top (grpc costs 75 ms), because every call of `ipamctl` imports
them all.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple

from ipamd.model.words import fitting, printable

EXIT_ATTENTION = 1
EXIT_USAGE = 2
EXIT_AWAY = 3
EXIT_REFUSED = 4

Answer = dict[str, Any]
"""A reply as JSON has it: every field present, in the words of the proto."""

Ask = Callable[..., Answer]
"""Asks the daemon an RPC of `vpc_ipamd.v1.Introspection` with the fields of its request. Raises: VerbError if there is no answer."""


class VerbError(Exception):
    """A verb has no answer: the message is for the operator, `exit_status` for the shell."""

    exit_status: int


class UsageError(VerbError):
    """The command line or the settings are wrong."""

    exit_status = EXIT_USAGE


class AwayError(VerbError):
    """The daemon does not answer on its socket."""

    exit_status = EXIT_AWAY


class RefusedError(VerbError):
    """The daemon answered that it cannot answer, or a verb that does its work itself cannot do it."""

    exit_status = EXIT_REFUSED


class Argument(NamedTuple):
    """An argument of a verb, as argparse takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """Write an argument as `add_argument` has it."""
    return Argument(names, options)


class Verb(NamedTuple):
    """One verb.

    help: its line in `ipamctl --help`.
    render: writes the answer as text for people; `-o json` prints the answer itself.
    rpc: what the daemon is asked; empty for a verb that does its work itself.
    fields: arguments that are fields of the request.
    make: gets the answer where asking `rpc` is not enough; a verb that ends with Ctrl-C yields answers, each printed as it comes.
    needs_attention: whether somebody must look at what an answer tells.
    """

    help: str
    render: Callable[[Answer], str]
    rpc: str = ""
    fields: tuple[str, ...] = ()
    make: Callable[[Ask, Any], Answer | Iterator[Answer]] | None = None
    arguments: tuple[Argument, ...] = ()
    needs_attention: Callable[[Answer], object] = lambda _: False

    def ask(self, daemon: Ask, arguments: Any) -> Answer | Iterator[Answer]:
        """Get the answer. Raises: VerbError."""
        if self.make is not None:
            return self.make(daemon, arguments)
        return daemon(self.rpc, **{name: getattr(arguments, name) for name in self.fields})


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+) ?([smhdw])(?:ec(?:ond)?s?|in(?:ute)?s?|(?:ou)?rs?|ays?|eeks?)?(?: ago)?", re.ASCII)
_DAY = re.compile(r"(?:(today|yesterday)(?:$|[ T]))?(.*)")


def moment(text: str, *, now: datetime | None = None) -> str:
    """Read a time of the past: a duration before now, RFC 3339, a day, a time of the day, `yesterday`, or the last two.

    `yesterday` alone is 24 h ago, as for date(1); a time of the day without a day is the latest past one. UTC if no zone is named.
    Returns: RFC 3339. Raises: ArgumentTypeError.
    """
    now, words = now or datetime.now(UTC), " ".join(text.split()).removesuffix(" UTC")
    try:
        if ago := _AGO.fullmatch(words.lower()):
            return (now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})).isoformat()
        if words.lower() in ("now", "today"):
            return now.isoformat()
        if words.lower() == "yesterday":
            return (now - timedelta(days=1)).isoformat()
        day = _DAY.fullmatch(words if words[:1].isdigit() else words.lower().replace("z", "+00:00"))
        if day and (day[1] or ":" in words[:3]):
            at = time.fromisoformat(day[2])
            found = datetime.combine(now.astimezone(at.tzinfo or UTC), at, at.tzinfo or UTC)
            is_before = day[1] == "yesterday" or (not day[1] and found > now)
            return (found - timedelta(days=is_before)).isoformat()
        found = datetime.fromisoformat(words)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).isoformat()
    except (ValueError, OverflowError):
        forms = "30m, 2h, 3d, yesterday, 14:00, 'yesterday 14:00', '2026-11-21 14:00', or RFC 3339"
        raise ArgumentTypeError(f"{text[:40]!r} is no time; write it as {forms}") from None


SUBJECT = (
    argument(
        "subject",
        metavar="ADDRESS|POD|CONTAINER_ID",
        help="an address, a pod as namespace/name or by its name, or a container ID or its beginning",
    ),
    argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="nothing older: 2h, yesterday, 14:00, '2026-11-21 14:00' (UTC if it names no zone)",
    ),
    argument("--at", type=moment, metavar="TIME", help="who had it then: as --since"),
    argument(
        "--history-dir",
        default="",
        metavar="DIR",
        help="the file's directory, read when the daemon is away (default: the setting's)",
    ),
)
"""The arguments of verbs about one address, pod or sandbox, now or in the past."""


# Tables for people: plain text, columns as wide as their content, which is shortened where one row would push all others apart; the
# other formats have it whole.


STATES = ("assigned", "reserved", "cooling", "quarantined", "free")
"""Address states in the order of PoolCounts.__str__: one order everywhere."""


CELL_MAX = 72
"""Characters of a name in a cell. Ours: a container ID and its interface have 69; a pod's namespace and name may have 507."""

WORDS_MAX = 240
"""Characters of words in a cell. Ours: what differs in an audit has 150."""

LINE_MAX = 800
"""Characters of a sentence, the last cell of a row included. Ours: the longest with cause, counts and next step have less, and EC2's
encoded words of a denial have 10,000."""

Columns = Mapping[str, str | Callable[[Answer], object]]
"""By its head what a cell of a column holds: a format that names fields of the row, or a function of it."""


def table(rows: Iterable[Answer], columns: Columns, *, empty: str = "") -> str:
    """Lay out rows under a header.

    Args:
        empty: what an empty cell shows.
    """
    lines = [list(columns)]
    for row in rows:
        cells = (cell.format_map(row) if isinstance(cell, str) else str(cell(row)) for cell in columns.values())
        *inner, last = (cell or empty for cell in cells)
        lines.append([*(fitting(cell, WORDS_MAX if " " in cell else CELL_MAX) for cell in inner), fitting(last, LINE_MAX)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def safe(value: Any) -> Any:
    """Make every text of an answer safe for a terminal: names of pods, and what EC2 and the runtime said, are in it."""
    if isinstance(value, dict):
        return {key: safe(one) for key, one in value.items()}
    if isinstance(value, list):
        return [safe(one) for one in value]
    return printable(value) if isinstance(value, str) else value
