"""One unary gRPC call over HTTP/2, as a state machine without I/O: bytes in, bytes out.

grpcio is not used, because importing it takes ten times as long as a whole run of the plugin. This module implements only the parts of
HTTP/2 and gRPC that one call on a new connection needs (RFC 9113, gRPC over HTTP/2). It bounds the frames, the header blocks and the
message that a peer can send. A frame that violates the protocol is a PeerError; a frame of type PRIORITY or of an unknown type is
ignored. Rejected: a general client (streams, priorities, a dynamic header table). Without I/O the module can be fuzzed as a function
and runs on both interpreters; `client.py` reads, writes and keeps the deadline.
"""

from cni_plugin import hpack
from cni_plugin.errors import DaemonAway, PeerError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4
FRAME_BYTES_MAX = 16384  # RFC 9113, 6.5.2: the initial SETTINGS_MAX_FRAME_SIZE, which neither side may refuse
WINDOW_INITIAL = 65535  # RFC 9113, 6.9.2
WINDOW_MAX = 0x7FFFFFFF  # RFC 9113, 6.9.1
MESSAGE_BYTES_MAX = 4 << 20  # gRPC's customary limit for a received message; a CNI result has a few KB
RECEIVE_WINDOW = MESSAGE_BYTES_MAX + 65536  # ours: room for the largest reply, so that its receipt needs no WINDOW_UPDATE
HEADER_BYTES_MAX = hpack.LIST_BYTES_MAX  # most bytes of all header blocks of the call together; an answer has two blocks
FRAME_COUNT_MAX = 8192  # ours: the largest reply takes 257 frames of DATA; a peer that sends frames without end is cut off here
ACK_COUNT_MAX = 256  # ours: PINGs and SETTINGS that we answer; a peer that never reads must not make our answers fill its socket

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS = 4
PADDED = 8
HAS_PRIORITY = 32

SETTING_TABLE_SIZE, SETTING_PUSH, SETTING_INITIAL_WINDOW, SETTING_HEADER_LIST = 1, 2, 4, 6

STATUS_OK = 0
STATUS_INTERNAL = 13
# HTTP/2 error code of RST_STREAM -> gRPC status, from the gRPC over HTTP/2 protocol description; all others are INTERNAL.
RESET_STATUS = {7: 14, 8: 1, 11: 8, 12: 7}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Build one frame; the payload is at most FRAME_BYTES_MAX."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class UnaryCall:
    """The client's side of one call on stream 1. Alternate `outgoing` and `receive` until `is_done`.

    Then `status` is the gRPC status, `status_message` its text (percent-decoded) and `reply` the message if the status is OK.
    """

    def __init__(self, path: str, message: bytes, *, timeout_ms: int) -> None:
        self.is_done = False
        self.status = STATUS_INTERNAL
        self.status_message = b""
        self.reply = b""
        prefix = b"\x00" + len(message).to_bytes(4, "big")  # gRPC's message prefix: not compressed, length
        prefix_flags = 0
        if not message:
            prefix_flags = END_STREAM
        self._send = _opening(path, timeout_ms) + frame(DATA, prefix_flags, 1, prefix)
        self._body = message  # sent in slices, never copied as a whole: MicroPython's heap is small
        self._body_sent = 0
        self._connection_window = WINDOW_INITIAL - len(prefix)
        self._stream_window = WINDOW_INITIAL - len(prefix)
        self._peer_initial_window = WINDOW_INITIAL
        self._received = b""
        self._frame_count = 0
        self._ack_count = 0
        self._parts = []  # type: list[bytes]
        self._part_bytes = 0
        self._block = b""  # the header block of which not all frames have come yet
        self._block_flags = -1  # flags of the HEADERS frame of `_block`; -1: no block is open
        self._header_bytes = 0
        self._has_headers = False

    def outgoing(self) -> bytes:
        """Return the bytes to send now: acknowledgements, and as much of the request as both flow-control windows allow."""
        parts = [self._send]
        self._send = b""
        while self._body_sent < len(self._body):
            unsent_bytes = len(self._body) - self._body_sent
            size = min(unsent_bytes, FRAME_BYTES_MAX, self._connection_window, self._stream_window)
            if size <= 0:
                break
            chunk = self._body[self._body_sent : self._body_sent + size]
            flags = 0
            if size == unsent_bytes:
                flags = END_STREAM
            parts.append(frame(DATA, flags, 1, chunk))
            self._body_sent += size
            self._connection_window -= size
            self._stream_window -= size
        return b"".join(parts)

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Raises: PeerError; DaemonAway if the peer reports that it did not take the request."""
        data = self._received + data
        position = 0
        while not self.is_done and len(data) - position >= 4:
            size = int.from_bytes(data[position : position + 3], "big")
            kind = data[position + 3]
            if size > FRAME_BYTES_MAX or (self._frame_count == 0 and kind != SETTINGS):
                raise PeerError("not HTTP/2: " + _excerpt(data[position:]))
            if len(data) - position < 9 + size:
                break  # the rest of the frame has not arrived yet
            stream = int.from_bytes(data[position + 5 : position + 9], "big") & WINDOW_MAX
            self._frame_count += 1
            if self._frame_count > FRAME_COUNT_MAX:
                raise PeerError("more than " + str(FRAME_COUNT_MAX) + " frames and no answer")
            self._digest(kind, data[position + 4], stream, data[position + 9 : position + 9 + size])
            position += 9 + size
        self._received = data[position:]

    def _digest(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block_flags >= 0 and kind != CONTINUATION:
            raise PeerError("a header block is interrupted by a frame of type " + str(kind))
        if kind == SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == PING:
            self._on_ping(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == GOAWAY:
            _on_goaway(payload)
        elif kind == PUSH_PROMISE:
            raise PeerError("a PUSH_PROMISE although push is off")
        elif kind in (DATA, HEADERS, CONTINUATION, RST_STREAM):
            self._on_stream_frame(kind, flags, stream, payload)

    def _on_stream_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if stream != 1:
            raise PeerError("a frame of type " + str(kind) + " on stream " + str(stream))
        if kind == DATA:
            self._on_data(flags, payload)
        elif kind == RST_STREAM:
            self._on_reset(payload)
        else:
            self._on_header_part(kind, flags, payload)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise PeerError("a PING of " + str(len(payload)) + " bytes")
        if not flags & ACK:
            self._acknowledge(PING, payload)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & ACK and payload):
            raise PeerError("malformed SETTINGS")
        for position in range(0, len(payload), 6):
            value = int.from_bytes(payload[position + 2 : position + 6], "big")
            if int.from_bytes(payload[position : position + 2], "big") == SETTING_INITIAL_WINDOW:
                if value > WINDOW_MAX:
                    raise PeerError("an initial window above 2^31-1")
                self._stream_window += value - self._peer_initial_window  # may become negative: RFC 9113, 6.9.2
                self._peer_initial_window = value
        if not flags & ACK:
            self._acknowledge(SETTINGS, b"")

    def _acknowledge(self, kind: int, payload: bytes) -> None:
        self._ack_count += 1
        if self._ack_count > ACK_COUNT_MAX:
            raise PeerError("more than " + str(ACK_COUNT_MAX) + " PINGs and SETTINGS and no answer")
        self._send += frame(kind, ACK, 0, payload)

    def _on_window_update(self, stream: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big") & WINDOW_MAX
        if len(payload) != 4 or increment == 0:
            raise PeerError("malformed WINDOW_UPDATE")
        if stream == 0:
            self._connection_window += increment
        elif stream == 1:
            self._stream_window += increment
        if self._connection_window > WINDOW_MAX or self._stream_window > WINDOW_MAX:
            raise PeerError("a flow-control window above 2^31-1")

    def _on_data(self, flags: int, payload: bytes) -> None:
        if not self._has_headers:
            raise PeerError("DATA before HEADERS")
        payload = _unpadded(flags, payload)
        self._part_bytes += len(payload)
        if self._part_bytes > 5 + MESSAGE_BYTES_MAX:
            raise PeerError("a reply of more than " + str(MESSAGE_BYTES_MAX) + " bytes")
        self._parts.append(payload)
        if flags & END_STREAM:
            raise PeerError("the answer ends without a gRPC status")

    def _on_reset(self, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerError("malformed RST_STREAM")
        code = int.from_bytes(payload, "big")
        self.status = RESET_STATUS.get(code, STATUS_INTERNAL)
        self.status_message = ("stream reset with HTTP/2 error " + str(code)).encode()
        self.is_done = True

    def _on_header_part(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            payload = _unpadded(flags, payload)
            if flags & HAS_PRIORITY:
                if len(payload) < 5:
                    raise PeerError("malformed HEADERS")
                payload = payload[5:]
            self._block_flags = flags
            self._block = payload
        elif self._block_flags < 0:
            raise PeerError("CONTINUATION without HEADERS")
        else:
            self._block += payload
        self._header_bytes += len(payload)
        if self._header_bytes > HEADER_BYTES_MAX:
            raise PeerError("header blocks of more than " + str(HEADER_BYTES_MAX) + " bytes")
        if flags & END_HEADERS:
            ends_stream = self._block_flags & END_STREAM != 0
            self._block_flags = -1
            self._on_headers(hpack.decode_headers(self._block), ends_stream)

    def _on_headers(self, headers: "list[tuple[bytes, bytes]]", ends_stream: bool) -> None:
        values = {}
        for name, value in headers:
            values[name] = value
        http_status = values.get(b":status", b"200")
        if http_status[:1] == b"1" and not ends_stream:
            return  # an informational response, before the answer to the call
        self._has_headers = True
        if b"grpc-status" not in values:
            if http_status != b"200":
                raise PeerError("HTTP status " + _excerpt(http_status))
            if ends_stream:
                raise PeerError("the answer ends without a gRPC status")
            return
        status = values[b"grpc-status"]
        if not (1 <= len(status) <= 2 and status.isdigit()):
            raise PeerError("gRPC status " + _excerpt(status))
        self.status = int(status.decode())
        self.status_message = percent_decoded(values.get(b"grpc-message", b""))
        if self.status == STATUS_OK:
            self.reply = self._message()
        self.is_done = True

    def _message(self) -> bytes:
        body = b"".join(self._parts)
        self._parts = []  # free them before `body[5:]` makes one more copy: MicroPython's heap is small
        if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5], "big") != len(body) - 5:
            raise PeerError("status OK with something else than one uncompressed message of the length it states")
        return body[5:]


def _on_goaway(payload: bytes) -> None:
    """Process a GOAWAY: the peer announces that it closes the connection. If it took our request before, its answer still comes.

    Raises: DaemonAway if the peer did not take our request; PeerError if the frame is malformed.
    """
    if len(payload) < 8:
        raise PeerError("a GOAWAY of " + str(len(payload)) + " bytes")
    last_stream = int.from_bytes(payload[:4], "big") & WINDOW_MAX
    if last_stream < 1:
        raise DaemonAway("the daemon is closing the connection and did not take the request")


def percent_decoded(text: bytes) -> bytes:
    """Undo the escaping of grpc-message. A `%` stays as it is if `int` reads no hexadecimal number from the two bytes after it. `int`
    also accepts one digit with a plus sign or a blank, and one digit at the end of the text.
    """
    pieces = text.split(b"%")
    out = [pieces[0]]
    for piece in pieces[1:]:
        try:
            out.append(bytes([int(piece[:2].decode(), 16)]) + piece[2:])
        except (ValueError, UnicodeError):
            out.append(b"%" + piece)
    return b"".join(out)


def _opening(path: str, timeout_ms: int) -> bytes:
    """Return the first bytes of the connection: preface, settings, a large connection window, and the request's headers."""
    settings = b""
    for identifier, value in (
        (SETTING_TABLE_SIZE, 0),
        (SETTING_PUSH, 0),
        (SETTING_INITIAL_WINDOW, RECEIVE_WINDOW),
        (SETTING_HEADER_LIST, HEADER_BYTES_MAX),
    ):
        settings += identifier.to_bytes(2, "big") + value.to_bytes(4, "big")
    headers = b""
    for name, header in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", str(max(timeout_ms, 1)).encode() + b"m"),
    ):
        headers += hpack.encode_literal(name, header)
    return b"".join(
        (
            PREFACE,
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW_UPDATE, 0, 0, (RECEIVE_WINDOW - WINDOW_INITIAL).to_bytes(4, "big")),
            frame(HEADERS, END_HEADERS, 1, headers),
        )
    )


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise PeerError("more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _excerpt(data: bytes) -> str:
    """Return the first bytes as text, with a dot for each byte that is not printable ASCII."""
    return "".join([chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data[:24]])
