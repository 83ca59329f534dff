"""Values of the model as messages of the proto, which are what `ipamctl` prints: for the daemon, and for `ipamctl` without it.

A field of a message is filled from the field of the model that has its name, so a value has two forms and nobody copies one into the
other by hand. A field that no value has is an error, not an empty answer. Rejected: JSON of the dataclasses, because the proto holds
the sentence of docs/ipamctl.md for each field, and lets an `ipamctl` of another release read the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.history import HistoryAnswer, HistoryQuestion
from ipamd.model.placement import Capacity
from ipamd.model.words import rfc3339
from ipamd.pb import introspection_pb2 as pb

HISTORY_LIMIT_DEFAULT = 100
HISTORY_LIMIT_MAX = 10_000
"""Entries in one reply. Ours: 10 000 are about 2.5 MB, below gRPC's default message limit."""

SUBJECT_MAX = 600
"""Characters. Ours: a namespace, a pod's name and a slash have 507 at most, a container ID and its interface 216."""

UNKNOWN = -1
"""Of a count that is not known."""

M = TypeVar("M", bound=Message)


def answer(kind: type[M], *values: object, **others: object) -> M:
    """Make a message: `others` by name, and every other field from the first of the values that has it.

    Raises: AttributeError if none has it.
    """
    filled = {}
    for field in kind.DESCRIPTOR.fields:
        if field.name in others:
            value = others[field.name]
        else:
            owner = next((one for one in values if hasattr(one, field.name)), values[0] if values else None)
            value = getattr(owner, field.name)
        filled[field.name] = _plain(value, field)
    return kind(**filled)


def _plain(value: Any, field: Any) -> Any:
    """A value as a field takes it; None leaves the field as it is."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, IpAddress | IpNetwork):
        return str(value)
    if value is None or field.message_type is None:
        return value
    several = value if isinstance(value, list | tuple) else (value,)
    made = [one if isinstance(one, Message) else answer(GetMessageClass(field.message_type), one) for one in several]
    return made if field.is_repeated else made[0]


def question_of(request: pb.GetHistoryRequest | pb.ExplainRequest, *, limit: int) -> HistoryQuestion:
    """Read a question; `limit` 0 is the default. Raises: InvalidRequestError."""
    if not request.subject:
        raise InvalidRequestError("no subject: give an address, a pod (namespace/name or name) or a container ID")
    if len(request.subject) > SUBJECT_MAX:
        raise InvalidRequestError(f"a subject of {len(request.subject)} characters", details=f"at most {SUBJECT_MAX}")
    return HistoryQuestion(request.subject, history_limit(limit), _moment("since", request.since), _moment("at", request.at))


def history_limit(asked: int) -> int:
    """How many entries are told; 0 asks for the default."""
    return min(asked or HISTORY_LIMIT_DEFAULT, HISTORY_LIMIT_MAX)


def history_reply(found: HistoryAnswer, question: HistoryQuestion, *, source: str) -> pb.GetHistoryReply:
    """Spell what is known of the past. `source`: daemon, or file."""
    return answer(pb.GetHistoryReply, found, entries=found.records, source=source, at=question.at)


def capacity_reply(limits: InstanceLimits, modes: Iterable[Capacity], *, vcpu_count: int) -> pb.CapacityReply:
    """Spell what a node can hold."""
    branches = UNKNOWN if limits.branch_count is None else limits.branch_count
    made = {"limits_source": limits.source, "vcpu_count": vcpu_count, "modes": tuple(modes), "branch_count": branches}
    return answer(pb.CapacityReply, limits, **made)


def _moment(name: str, text: str) -> datetime | None:
    """Read an RFC 3339 time. Raises: InvalidRequestError."""
    if not text:
        return None
    details = "RFC 3339, as 2026-11-22T04:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise InvalidRequestError(f"{name}={text[:40]!r} has no time zone", details=details)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{name}={text[:40]!r} is no time", details=details) from error
