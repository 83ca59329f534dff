"""Define a verb of `ipamctl`, and the exit statuses.

    0  answered
    1  answered, and the answer needs attention, for example because the node is not ready
    2  wrong usage or settings
    3  the daemon does not answer
    4  the daemon refused the question, or a verb that works without the daemon cannot do its work

A verb's module must not import anything heavy at its top (grpc takes 75 ms), because every call of `ipamctl` imports all verbs.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple

from ipamd.ipamctl.layout import WHOLE, Layout

EXIT_ATTENTION = 1

EXIT_USAGE = 2

EXIT_AWAY = 3

EXIT_REFUSED = 4

Answer = dict[str, Any]
"""A reply as in JSON: every field is present, under its name in the proto, except a nested message that is not set."""

Ask = Callable[..., Answer]
"""Calls an RPC of `vpc_ipamd.v1.Introspection` with the fields of its request. Raises: VerbError if there is no answer."""


class VerbError(Exception):
    """Raised if a verb has no answer. The message is for the operator, `exit_status` for the shell."""

    exit_status: int


class UsageError(VerbError):
    """The command line or the settings are wrong."""

    exit_status = EXIT_USAGE


class AwayError(VerbError):
    """The daemon does not answer on its socket. `kind`: an `AbsenceKind`, the reason."""

    exit_status = EXIT_AWAY

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class RefusedError(VerbError):
    """The daemon refused the question, or a verb that works without the daemon cannot do its work."""

    exit_status = EXIT_REFUSED


class Argument(NamedTuple):
    """An argument of a verb, as argparse takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """Make an argument from the parameters of argparse's `add_argument`."""
    return Argument(names, options)


class Verb(NamedTuple):
    """One verb.

    help: its line in `ipamctl --help`.
    about, examples: a sentence or two, and command lines, for its own `--help`.
    lay_out: writes the answer as text for people; `-o json` prints the answer itself.
    rpc: the RPC that answers it; empty for a verb that works without the daemon.
    fields: names of the arguments that become fields of the request of `rpc`.
    make: makes the answer if one call of `rpc` is not enough. A verb that runs until Ctrl-C yields answers, which are printed at once.
    arguments: its arguments and options besides those of every verb.
    needs_attention: whether an answer makes the exit status 1.
    """

    help: str
    lay_out: Callable[[Answer, Layout], str]
    about: str
    examples: tuple[str, ...]
    rpc: str = ""
    fields: tuple[str, ...] = ()
    make: Callable[[Ask, Any], Answer | Iterator[Answer]] | None = None
    arguments: tuple[Argument, ...] = ()
    needs_attention: Callable[[Answer], object] = lambda _: False

    def render(self, answer: Answer, layout: Layout = WHOLE) -> str:
        """Write the answer as text for people."""
        return self.lay_out(answer, layout)

    def ask(self, daemon: Ask, arguments: Any) -> Answer | Iterator[Answer]:
        """Get the answer. Raises: VerbError."""
        if self.make is not None:
            return self.make(daemon, arguments)
        return daemon(self.rpc, **{name: getattr(arguments, name) for name in self.fields})


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_DURATION = re.compile(r"(\d+) ?([smhdw])(?:ec(?:ond)?s?|in(?:ute)?s?|(?:ou)?rs?|ays?|eeks?)?(?: ago)?", re.ASCII)

_DAY = re.compile(r"(?:(today|yesterday)(?:$|[ T]))?(.*)")


def moment(text: str, *, now: datetime | None = None) -> str:
    """Read a time of the past that an operator wrote.

    The text is a duration before now, RFC 3339, a day, a time of the day, or `today` or `yesterday` alone or with a time of the day.
    As for date(1), `yesterday` alone is 24 h ago, and `today` alone is now. A time of the day without a day is its latest occurrence
    in the past. The zone is UTC unless the text names a zone.
    Returns: RFC 3339. Raises: ArgumentTypeError.
    """
    words = " ".join(text.split()).removesuffix(" UTC")
    try:
        return _read_moment(words, now or datetime.now(UTC)).isoformat()
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
"""The arguments of the verbs `explain` and `history`, which are about one address, pod or sandbox, now or in the past."""


def _read_moment(words: str, now: datetime) -> datetime:
    """Try each form in turn. Raises: ValueError, OverflowError."""
    duration = _DURATION.fullmatch(words.lower())
    if duration is not None:
        return now - timedelta(**{_UNITS[duration[2]]: int(duration[1])})
    if words.lower() in ("now", "today"):
        return now
    if words.lower() == "yesterday":
        return now - timedelta(days=1)
    if not words[:1].isdigit():
        words = words.lower().replace("z", "+00:00")
    day = _DAY.fullmatch(words)
    if day is not None and (day[1] or ":" in words[:3]):
        return _time_of_day(day[1], day[2], now)
    at = datetime.fromisoformat(words)
    if at.tzinfo is None:
        return at.replace(tzinfo=UTC)
    return at


def _time_of_day(day: str | None, text: str, now: datetime) -> datetime:
    """Return the instant of a time of the day.

    `day`: `today` or `yesterday`. Without it the result is the latest occurrence that is not in the future.
    Raises: ValueError, OverflowError.
    """
    time_of_day = time.fromisoformat(text)
    zone = time_of_day.tzinfo or UTC
    at = datetime.combine(now.astimezone(zone), time_of_day, zone)
    if day == "yesterday" or (not day and at > now):
        at -= timedelta(days=1)
    return at
