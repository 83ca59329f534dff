"""Chunked answers of instance metadata that lie about their size: a typed error, at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.http_answers import HttpAnswers, response
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.model.errors import CloudError
from ipamd.settings import CloudConfig
from tests.fakes.clock import FakeClock

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@pytest.fixture
def server() -> Iterator[HttpAnswers]:
    """Answers as told."""
    made = HttpAnswers()
    yield made
    made.close()


@pytest.mark.parametrize(
    "chunk", [b"-5\r\nhello", b"FFFFFFFFFFFFFFFF\r\nx", b"7fffffffffffffff\r\nx", b"zz\r\n", b"-1\r\nx", b"5\r\nhello"]
)
def test_a_chunk_that_cannot_be_is_an_error_of_ours(server: HttpAnswers, chunk: bytes) -> None:
    """http.client passes the size on unread: negative and huge ones become ValueError and OverflowError, which are no answers."""
    server.answers = [response(b"token"), HEAD + chunk]
    clock = FakeClock()
    metadata = ImdsMetadata(CloudConfig(imds_endpoint=server.url), clock=clock, sleep=clock.advance)
    with pytest.raises(CloudError):
        metadata.list_interfaces()


def test_a_token_that_is_no_header_is_an_error_of_ours(server: HttpAnswers) -> None:
    """A token of two lines cannot be sent back."""
    server.answers = [response(b"a\nb"), response(b"eni-1")]
    clock = FakeClock()
    metadata = ImdsMetadata(CloudConfig(imds_endpoint=server.url), clock=clock, sleep=clock.advance)
    with pytest.raises(CloudError):
        metadata.list_interfaces()
