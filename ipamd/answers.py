"""Convert values of the model to the proto messages that `ipamctl` prints.

The daemon makes these messages for its answers, and `ipamctl` makes them for the verbs that work without the daemon. A field of a
message gets the value of the model's field of the same name, so no code has to copy the fields. If no value has the field, that is an
error, not an empty answer. Rejected: JSON of the dataclasses, because the proto documents each field for docs/ipamctl.md, and an
`ipamctl` of another release can read the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ipamd.model.capacity import Capacity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion
from ipamd.model.time_text import rfc3339
from ipamd.pb import introspection_pb2 as pb

HISTORY_LIMIT_DEFAULT = 100
HISTORY_LIMIT_MAX = 10_000
"""Default and largest number of records in one reply. Ours: 100 are a few screens; 10 000 are about 2.5 MB, below gRPC's default
message limit."""

SUBJECT_MAX = 600
"""Longest subject of a question, in characters. Ours: a namespace, a pod's name and a slash have 507 at most, a container ID and its
interface 216."""

UNKNOWN = -1
"""Stands for a count that is not known."""

M = TypeVar("M", bound=Message)


def answer(kind: type[M], *values: object, **explicit: object) -> M:
    """Make a message.

    Args:
        kind: its class.
        values: objects of the model. A field of the message comes from the first of them that has an attribute of the same name.
        explicit: values of fields by name, which are not looked up in `values`.
    Raises: AttributeError if a field of the message is in none of them.
    """
    fields = {}
    for field in kind.DESCRIPTOR.fields:
        value = explicit.get(field.name)
        if field.name not in explicit:
            value = _attribute(field.name, values)
        fields[field.name] = _plain(value, field)
    return kind(**fields)


def _attribute(name: str, values: Iterable[object]) -> object:
    """The attribute of the first value that has it. Raises: AttributeError."""
    for value in values:
        if hasattr(value, name):
            return getattr(value, name)
    raise AttributeError(f"no value has the field {name}")


def _plain(value: Any, field: Any) -> Any:
    """Convert a value to the type of a field; None leaves the field unset."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, IpAddress | IpNetwork):
        return str(value)
    if value is None or field.message_type is None:
        return value
    if field.is_repeated:
        return [_message(element, field) for element in value]
    return _message(value, field)


def _message(value: Any, field: Any) -> Message:
    if isinstance(value, Message):
        return value
    return answer(GetMessageClass(field.message_type), value)


def question_of(request: pb.GetHistoryRequest | pb.ExplainRequest, *, limit: int) -> HistoryQuestion:
    """Read a question about the history. `limit`: as for `history_limit`. Raises: InvalidRequestError."""
    if not request.subject:
        raise InvalidRequestError("no subject: give an address, a pod (namespace/name or name) or a container ID")
    if len(request.subject) > SUBJECT_MAX:
        raise InvalidRequestError(f"a subject of {len(request.subject)} characters", details=f"at most {SUBJECT_MAX}")
    return HistoryQuestion(request.subject, history_limit(limit), _moment("since", request.since), _moment("at", request.at))


def history_limit(requested: int) -> int:
    """Return the largest number of records in a reply. `requested`: 0 for the default; more than HISTORY_LIMIT_MAX is cut to it."""
    return min(requested or HISTORY_LIMIT_DEFAULT, HISTORY_LIMIT_MAX)


def history_reply(past: HistoryAnswer, question: HistoryQuestion, *, source: str) -> pb.GetHistoryReply:
    """Make the reply about the history. `source`: `daemon` or `file`."""
    return answer(pb.GetHistoryReply, past, entries=past.records, source=source, at=question.at)


def capacity_reply(
    limits: InstanceLimits, modes: Iterable[Capacity], *, vcpu_count: int, pools: Iterable[object] = ()
) -> pb.CapacityReply:
    """Make the reply about the number of pods that a node can hold. `pools`: the reports of the node's pools (`PodPoolReport`)."""
    branch_limit = UNKNOWN
    if limits.trunk_capacity is not None:
        branch_limit = limits.trunk_capacity
    return answer(
        pb.CapacityReply,
        limits,
        limits_source=limits.source,
        vcpu_count=vcpu_count,
        modes=[answer(pb.CapacityMode, mode, recommended_max_pods=mode.recommended) for mode in modes],
        branch_limit=branch_limit,
        pools=pools,
    )


def _moment(name: str, text: str) -> datetime | None:
    """Read an RFC 3339 time; None if the text is empty. Raises: InvalidRequestError."""
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
