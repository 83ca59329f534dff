"""Questions about the past and the settings, as they come over the socket: read strictly, answered without secrets."""

from __future__ import annotations

import grpc
import pytest

from ipamd.answers import HISTORY_LIMIT_DEFAULT, HISTORY_LIMIT_MAX, question_of
from ipamd.model.errors import CloudError, DatastoreError, InvalidRequestError, NotServingError
from ipamd.pb import introspection_pb2 as pb
from ipamd.rpc.introspection import method_handlers, setting
from ipamd.settings import ConfigLine


@pytest.mark.parametrize(("limit", "expected"), [(0, HISTORY_LIMIT_DEFAULT), (7, 7), (10**6, HISTORY_LIMIT_MAX)])
def test_a_reply_is_bounded(limit: int, expected: int) -> None:
    """Whatever is asked for."""
    assert question_of(pb.GetHistoryRequest(subject="x"), limit=limit).limit == expected


@pytest.mark.parametrize(
    "fields", [{}, {"subject": "x" * 601}, {"subject": "x", "since": "2h"}, {"subject": "x", "at": "2026-11-22T10:00:00"}]
)
def test_a_question_that_is_none_is_refused(fields: dict[str, str]) -> None:
    """No subject, a long one, a duration (ours to read is `ipamctl`), a time without its zone, or one that UTC cannot say."""
    with pytest.raises(InvalidRequestError):
        question_of(pb.GetHistoryRequest(**fields), limit=1)


def test_settings_are_told_without_credentials() -> None:
    """An endpoint may hold some."""
    line = ConfigLine("AWS_EC2_ENDPOINT", "http://me:hunter2@localhost:1/", "", "environment", "URL", is_live=False)
    told = setting(line)
    assert (told.name, told.origin) == ("AWS_EC2_ENDPOINT", "environment")
    assert told.value == "http://[redacted]@localhost:1/"


class Aborted(Exception):
    """What grpcio raises in the thread of a call that is refused."""


class Call:
    """A call that notes how it is refused."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the call."""
        raise Aborted(code, details)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DatastoreError("the disk is full"), grpc.StatusCode.FAILED_PRECONDITION),
        (CloudError("EC2 refused"), grpc.StatusCode.FAILED_PRECONDITION),
        (NotServingError("restoring"), grpc.StatusCode.FAILED_PRECONDITION),
        (InvalidRequestError("no such ENI"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_an_expected_error_is_the_status_of_the_call(error: Exception, code: grpc.StatusCode) -> None:
    """With its text, and not as grpcio's UNKNOWN for any exception: `ipamctl` shows it as a refusal."""

    class Refusing:
        def GetHistory(self, _: pb.GetHistoryRequest) -> pb.GetHistoryReply:
            raise error

    handlers = method_handlers(Refusing())
    with pytest.raises(Aborted) as aborted:
        handlers["GetHistory"].unary_unary(pb.GetHistoryRequest(subject="x"), Call())
    assert aborted.value.args == (code, str(error))
