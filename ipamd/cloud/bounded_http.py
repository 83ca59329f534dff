"""HTTP answers bounded in bytes and in time, headers included, for all readers: metadata, EC2, credentials.

A read timeout bounds each read only, so a peer may send one byte a second for ever, and an endless body fills the memory. Here the
socket's timeout bounds the whole answer, and so does a number of bytes. Both bounds are in the response class of `http.client`, which
every reader uses: our own, and botocore's connections (through urllib3), including those that fetch credentials from metadata, a
container endpoint or STS.
Rejected: botocore's event `before-send`, because the fetchers of credentials do not raise it.
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
"""Longest time, in seconds, for an answer over a socket without a timeout. Ours: only a safeguard, because every caller here sets a
timeout."""

AWS_BYTES_MAX = 8 << 20
"""The largest number of bytes of an answer that botocore reads. Ours: ample, because the largest genuine answer, all ENIs of an
instance of the largest type (64 ENIs x 50 addresses), has 1 to 2 MiB."""

METADATA_BYTES_MAX = 1 << 18
"""The largest number of bytes of an answer of instance metadata that `metadata.py` reads. Ours: ample, because the largest genuine
answer, the addresses of one ENI, has 1 KiB."""

_log = logging.getLogger(__name__)


class AnswerLimitError(OSError):
    """Reading an answer was given up. It is an OSError, because every reader of a socket handles an OSError."""


class AnswerTooLongError(AnswerLimitError):
    """The answer has more bytes than any genuine one."""


class AnswerTooSlowError(AnswerLimitError, TimeoutError):
    """The answer began, but did not end in time."""


class BoundedResponse(http.client.HTTPResponse):
    """An answer of at most `BYTES_MAX` bytes, headers included. The socket's timeout bounds the time from the construction of this
    object to the end of the answer.
    """

    BYTES_MAX = AWS_BYTES_MAX

    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp = _BoundedBuffer(_BoundedReader(sock, self.fp.detach(), bytes_max=self.BYTES_MAX), self.BYTES_MAX)


class MetadataResponse(BoundedResponse):
    """An answer of instance metadata."""

    BYTES_MAX = METADATA_BYTES_MAX


class _BoundedBuffer(io.BufferedReader):
    """Refuses announced sizes above the bound, because `read` allocates memory for the whole size before the first byte arrives."""

    def __init__(self, raw: _BoundedReader, bytes_max: int) -> None:
        super().__init__(raw)
        self._bytes_max = bytes_max

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, or all if it is None or -1. Raises: AnswerTooLongError if `size` is above the bound or below -1."""
        if size is not None and not -1 <= size <= self._bytes_max:  # a chunk's size comes unchecked, and may be negative
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
        """Read the bytes that have arrived, or wait for some. Returns: how many; 0 at the end of the answer; None if the socket does
        not block and has no bytes.

        Raises: AnswerLimitError; the errors of the socket.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise self._too_slow()
        self._sock.settimeout(left_s)
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            if self._left == self._bytes_max:
                raise  # nothing was received, so the socket's own timeout error is right
            raise self._too_slow() from error
        if count:
            self._left -= count
            if self._left < 0:
                raise self._logged(AnswerTooLongError(f"the answer was given up after {self._bytes_max} bytes"))
        if count is None:
            return None
        return int(count)

    def close(self) -> None:
        """Release the socket; idempotent."""
        self._raw.close()
        super().close()

    def _too_slow(self) -> AnswerLimitError:
        byte_count = self._bytes_max - self._left
        return self._logged(AnswerTooSlowError(f"the answer had not ended after {self._total_s:g} s ({byte_count} bytes came)"))

    def _logged(self, error: AnswerLimitError) -> AnswerLimitError:
        """Log the error here, because botocore's search for credentials ignores it and tries the next provider."""
        _log.warning("HTTP answer given up peer=%s error=%s", _peer(self._sock), error)
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
    """Find an AnswerLimitError among the causes of a library's exception; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnswerLimitError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
