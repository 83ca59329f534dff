"""HTTP answers bounded in bytes and in time, headers included, for whoever reads them: metadata, EC2, credentials.

A read timeout bounds each read, so a peer that sends a byte a second is never late, and a body without an end fills the memory. Here
the socket's timeout, which is that of one read, bounds the whole answer, and so does a number of bytes. It is done where every
answer passes: `http.client` makes its response from the socket, and botocore's connections (through urllib3) do the same, also
those that fetch credentials from metadata, a container endpoint or STS.
Rejected: botocore's event `before-send`, whose handler may send the request itself: the fetchers of credentials raise no event.
Source: https://docs.python.org/3/library/http.client.html; CPython's Lib/http/client.py, HTTPConnection.response_class.
"""

from __future__ import annotations

import http.client
import io
import logging
import socket
import time
from typing import Any

ANSWER_S = 60.0
"""For a socket without a timeout of its own. Ours; every caller here sets one."""

AWS_BYTES_MAX = 8 << 20
"""Ours: the largest answer, all ENIs of an instance of the largest type (64 ENIs x 50 addresses), has 1 to 2 MiB."""

METADATA_BYTES_MAX = 1 << 18
"""Ours: the largest leaf, the addresses of one ENI, has 1 KiB; the identity document 500 bytes."""


_log = logging.getLogger(__name__)


class AnswerLimitError(OSError):
    """An answer was given up. An OSError, because that is what every reader of a socket is ready for."""


class AnswerTooLongError(AnswerLimitError):
    """It has more bytes than any honest one."""


class AnswerTooSlowError(AnswerLimitError, TimeoutError):
    """It came, but it had not ended in time."""


class BoundedResponse(http.client.HTTPResponse):
    """An answer of at most `BYTES_MAX`, headers included, that ends within the socket's timeout from the first look at it."""

    BYTES_MAX = AWS_BYTES_MAX

    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp = _BoundedBuffer(_BoundedReader(sock, self.fp.detach(), bytes_max=self.BYTES_MAX), self.BYTES_MAX)


class MetadataResponse(BoundedResponse):
    """An answer of instance metadata."""

    BYTES_MAX = METADATA_BYTES_MAX


class _BoundedBuffer(io.BufferedReader):
    """Refuses to read what was only announced: `read` takes the memory for all of it before the first byte."""

    def __init__(self, raw: _BoundedReader, bytes_max: int) -> None:
        super().__init__(raw)
        self._bytes_max = bytes_max

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as much. Raises: AnswerTooLongError for more than a whole answer may have."""
        if size is not None and not -1 <= size <= self._bytes_max:  # http.client passes on what a chunk says, negative or not
            raise AnswerTooLongError(f"the answer announces {size} bytes, over {self._bytes_max}")
        return super().read(size)


class _BoundedReader(io.RawIOBase):
    """The socket's bytes, until a bound is reached."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, *, bytes_max: int) -> None:
        super().__init__()
        self._sock = sock
        self._raw = raw
        self._left = self._bytes_max = bytes_max
        self._total_s = sock.gettimeout() or ANSWER_S
        self._deadline = time.monotonic() + self._total_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what there is. Raises: AnswerLimitError, and what the socket raises."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise self._too_slow()
        self._sock.settimeout(left_s)
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            if self._left == self._bytes_max:
                raise  # nothing came: the reader has its own words for that
            raise self._too_slow() from error
        if count:
            self._left -= count
            if self._left < 0:
                raise self._told(AnswerTooLongError(f"the answer was given up after {self._bytes_max} bytes"))
        return int(count) if count is not None else None

    def close(self) -> None:
        """Let go of the socket; idempotent."""
        self._raw.close()
        super().close()

    def _too_slow(self) -> AnswerLimitError:
        came = self._bytes_max - self._left
        return self._told(AnswerTooSlowError(f"the answer had not ended after {self._total_s:g} s ({came} bytes came)"))

    def _told(self, error: AnswerLimitError) -> AnswerLimitError:
        """Log it here: botocore's search for credentials goes on to the next provider and says nothing."""
        _log.warning("an HTTP answer is given up peer=%s error=%s", _peer(self._sock), error)
        return error


def _peer(sock: socket.socket) -> str:
    try:
        return "{}:{}".format(*sock.getpeername()[:2])
    except OSError:
        return "(gone)"


def bound_botocore() -> None:
    """Bound every answer that botocore reads in this process; idempotent."""
    from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection

    for connection in (AWSHTTPConnection, AWSHTTPSConnection):
        connection.response_class = BoundedResponse  # type: ignore[assignment]  # its stub names botocore's own subclass


def broken_bound(error: BaseException) -> AnswerLimitError | None:
    """Find the bound behind an exception of a library that has wrapped it; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnswerLimitError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
