"""Replies about the past: used by the daemon, and by `ipamctl` for what it reads from the file when the daemon is away."""

from __future__ import annotations

from datetime import UTC, datetime

from ipamd.model.errors import InvalidRequestError
from ipamd.model.history import HistoryAnswer, HistoryQuestion, HistoryRecord, Tenure
from ipamd.model.words import rfc3339
from ipamd.pb import introspection_pb2 as pb

HISTORY_LIMIT_DEFAULT = 100
HISTORY_LIMIT_MAX = 10_000
"""Entries in one reply. Ours: 10 000 are about 2.5 MB, below gRPC's default message limit."""

SUBJECT_MAX = 600
"""Characters. Ours: a namespace, a pod's name and a slash have 507 at most, a container ID and its interface 216."""

FROM_DAEMON = "daemon"
FROM_FILE = "file"


def question_of(request: pb.GetHistoryRequest | pb.ExplainRequest, *, limit: int) -> HistoryQuestion:
    """Read a question; `limit` 0 is the default. Raises: InvalidRequestError."""
    if not request.subject:
        raise InvalidRequestError("no subject: give an address, a pod (namespace/name or name) or a container ID")
    if len(request.subject) > SUBJECT_MAX:
        raise InvalidRequestError(f"a subject of {len(request.subject)} characters", details=f"at most {SUBJECT_MAX}")
    limit = min(limit or HISTORY_LIMIT_DEFAULT, HISTORY_LIMIT_MAX)
    return HistoryQuestion(request.subject, limit, _moment("since", request.since), _moment("at", request.at))


def history_reply(answer: HistoryAnswer, question: HistoryQuestion, *, source: str) -> pb.GetHistoryReply:
    """Spell an answer."""
    return pb.GetHistoryReply(
        entries=[entry(record) for record in answer.records],
        tenures=[_tenure(one) for one in answer.tenures],
        notes=answer.notes,
        source=source,
        at=rfc3339(question.at) if question.at else "",
    )


def entry(record: HistoryRecord) -> pb.LedgerEntry:
    """Spell one record."""
    return pb.LedgerEntry(
        at=rfc3339(record.at),
        event=record.event,
        address=record.address,
        container_id=record.container_id,
        ifname=record.ifname,
        eni_id=record.eni_id,
        detail=record.detail,
        pod=record.pod,
        since=rfc3339(record.since) if record.since else "",
        count=record.count,
        code=record.code,
    )


def _tenure(one: Tenure) -> pb.Tenure:
    return pb.Tenure(
        address=one.address,
        container_id=one.container_id,
        ifname=one.ifname,
        pod=one.pod,
        since=rfc3339(one.since),
        until=rfc3339(one.until) if one.until else "",
        ended_by=one.ended_by,
        sentence=str(one),
    )


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
