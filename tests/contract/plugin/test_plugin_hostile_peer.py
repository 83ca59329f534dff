"""A peer that is broken or hostile: an error document within the deadline, never a traceback, never a success."""

from __future__ import annotations

import random
import struct

import pytest

from ipamd.pb import cni_pb2

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind, flags, stream, payload):
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """One header as literal without indexing."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def message(payload, flag=0):
    """One length-prefixed gRPC message."""
    return struct.pack(">BI", flag, len(payload)) + payload


OK_REPLY = cni_pb2.ExecReply(protocol=1, result=b'{"ok":true}').SerializeToString()
HEAD = SETTINGS + frame(1, 4, 1, b"\x88")
TRAILERS = frame(1, 5, 1, literal(b"grpc-status", b"0"))
BODY = frame(0, 0, 1, message(OK_REPLY))

HOSTILE = {
    "garbage": random.Random(7).randbytes(200000),
    "zeros": bytes(100000),
    "ones": b"\xff" * 100000,
    "http/1": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46",
    "frame too large": SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "no settings first": frame(6, 0, 0, bytes(8)),
    "settings of 5 bytes": frame(4, 0, 0, bytes(5)),
    "settings on a stream": frame(4, 0, 1, b""),
    "settings ack with payload": frame(4, 1, 0, bytes(6)),
    "window too large": frame(4, 0, 0, struct.pack(">HI", 4, 1 << 31)),
    "ping of 7 bytes": SETTINGS + frame(6, 0, 0, bytes(7)),
    "endless pings": SETTINGS + frame(6, 0, 0, bytes(8)) * 20000,
    "endless settings": SETTINGS * 20000,
    "endless window updates": SETTINGS + frame(8, 0, 0, b"\x00\x00\x00\x01") * 20000,
    "window overflow": SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff"),
    "window update of zero": SETTINGS + frame(8, 0, 0, bytes(4)),
    "unknown frames for ever": SETTINGS + frame(99, 0, 0, b"x" * 100) * 20000,
    "goaway too short": SETTINGS + frame(7, 0, 0, bytes(7)),
    "push": SETTINGS + frame(5, 4, 1, bytes(8)),
    "headers on another stream": SETTINGS + frame(1, 4, 3, b"\x88"),
    "headers on no stream": SETTINGS + frame(1, 4, 0, b"\x88"),
    "data before headers": SETTINGS + BODY,
    "continuation alone": SETTINGS + frame(9, 4, 1, b"\x88"),
    "interrupted header block": SETTINGS + frame(1, 0, 1, b"\x88") + frame(6, 0, 0, bytes(8)),
    "endless continuation": SETTINGS + frame(1, 0, 1, b"\x88") + frame(9, 0, 1, bytes(16384)) * 100,
    "empty continuations": SETTINGS + frame(1, 0, 1, b"\x88") + frame(9, 0, 1, b"") * 20000,
    "padding over the frame": SETTINGS + frame(1, 4 | 8, 1, b"\x09abc"),
    "priority missing": SETTINGS + frame(1, 4 | 32, 1, b"\x00"),
    "index zero": SETTINGS + frame(1, 4, 1, b"\x80"),
    "index of a dynamic table": SETTINGS + frame(1, 4, 1, b"\xbe"),
    "integer without end": SETTINGS + frame(1, 4, 1, b"\xff" + b"\xff" * 20),
    "string over the block": SETTINGS + frame(1, 4, 1, b"\x00\x7fabc"),
    "more headers than bytes pay for": SETTINGS + frame(1, 4, 1, b"\x88" * 1025),
    "many empty names in huffman": SETTINGS + frame(1, 4, 1, b"\x00\x80\x00" * 5461),
    "many long names in huffman": SETTINGS + frame(1, 4, 1, (b"\x00\xff\x01" + b"\x1f" * 128 + b"\x00") * 120) * 3,
    "a header table of 4096 bytes": SETTINGS + frame(1, 4, 1, b"\x3f\xe1\x1f\x88"),
    "informational answers for ever": SETTINGS + frame(1, 4, 1, b"\x08\x03100") * 20000,
    "large informational answers": SETTINGS + frame(1, 4, 1, b"\x08\x03100" + literal(b"x", b"y" * 100) * 150) * 3,
    "empty header blocks for ever": SETTINGS + frame(1, 4, 1, b"") * 20000,
    "bad huffman": SETTINGS + frame(1, 4, 1, b"\x00\x84\xff\xff\xff\xff\x00"),
    "no grpc status": HEAD + frame(1, 5, 1, literal(b"x", b"y")),
    "data ends the stream": HEAD + frame(0, 1, 1, message(OK_REPLY)),
    "status is no number": HEAD + BODY + frame(1, 5, 1, literal(b"grpc-status", b"zero")),
    "status is negative": HEAD + BODY + frame(1, 5, 1, literal(b"grpc-status", b"-1")),
    "status is superscript": HEAD + BODY + frame(1, 5, 1, literal(b"grpc-status", "\u00b2".encode())),
    "http status 404": SETTINGS + frame(1, 5, 1, b"\x8d"),
    "ok without message": HEAD + TRAILERS,
    "message cut": HEAD + frame(0, 0, 1, message(OK_REPLY)[:-1]) + TRAILERS,
    "two messages": HEAD + BODY + BODY + TRAILERS,
    "compressed": HEAD + frame(0, 0, 1, message(OK_REPLY, 1)) + TRAILERS,
    "reply over the cap": HEAD + frame(0, 0, 1, bytes(16384)) * 257,
    "reply is no message": HEAD + frame(0, 0, 1, message(b"\xff" * 50)) + TRAILERS,
    "reply has groups": HEAD + frame(0, 0, 1, message(b"\x0b\x0c")) + TRAILERS,
    "reply field over its end": HEAD + frame(0, 0, 1, message(b"\x12\x7f")) + TRAILERS,
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_broken_answer_is_an_error_of_ours(any_plugin, raw_peer, spooled, answer):
    """Whatever stands on the socket, the runtime gets a CNI error; nothing is spooled for a peer that is not ours to trust."""

    def behave(connection):
        connection.recv(65536)
        connection.sendall(answer)
        while connection.recv(65536):  # stay open: the answer alone must be enough to end it
            pass

    with raw_peer(behave):
        outcome = any_plugin.run("ADD")
        outcome.error(192)
        assert outcome.elapsed_s < 30, "its deadline ended it, not the answer"
        any_plugin.run("DEL").error(192)
    assert spooled() == []


ODD_BUT_VALID = {
    "plain": HEAD + BODY + TRAILERS,
    "many acks and pings": SETTINGS + frame(4, 1, 0, b"") + frame(6, 0, 0, b"12345678") * 50 + HEAD[9:] + BODY + TRAILERS,
    "byte-sized data": HEAD + b"".join(frame(0, 0, 1, bytes([byte])) for byte in message(OK_REPLY)) + TRAILERS,
    "padded": SETTINGS + frame(1, 12, 1, b"\x03\x88\0\0\0") + frame(0, 8, 1, b"\x02" + message(OK_REPLY) + b"\0\0") + TRAILERS,
    "priority": SETTINGS + frame(2, 0, 1, bytes(5)) + frame(1, 36, 1, bytes(5) + b"\x88") + BODY + TRAILERS,
    "continuation": HEAD + BODY + frame(1, 1, 1, b"") + frame(9, 0, 1, TRAILERS[9:14]) + frame(9, 4, 1, TRAILERS[14:]),
    "unknown frame and flags": HEAD + frame(77, 255, 5, b"?") + frame(0, 0x40, 1, message(OK_REPLY)) + TRAILERS,
    "table size update": SETTINGS + frame(1, 4, 1, b"\x20\x88") + BODY + TRAILERS,
    "informational first": SETTINGS + frame(1, 4, 1, b"\x08\x03100") + HEAD[9:] + BODY + TRAILERS,
    "huffman": HEAD + BODY + frame(1, 5, 1, b"\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x07"),
    "indexed literals": SETTINGS + frame(1, 4, 1, b"\x48\x03200\x5f\x10application/grpc") + BODY + TRAILERS,
    "goaway after the request": HEAD + frame(7, 0, 0, struct.pack(">II", 1, 0)) + BODY + TRAILERS,
    "reset after the trailers": HEAD + BODY + TRAILERS + frame(3, 0, 1, bytes(4)),
}


@pytest.mark.parametrize("answer", ODD_BUT_VALID.values(), ids=ODD_BUT_VALID.keys())
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 7])
def test_an_unusual_but_valid_answer_is_understood(any_plugin, raw_peer, answer, chunk_bytes):
    """All that HTTP/2 and gRPC allow a server is read, however the bytes are cut."""

    def behave(connection):
        connection.recv(65536)
        for position in range(0, len(answer), chunk_bytes):
            connection.sendall(answer[position : position + chunk_bytes])
        connection.recv(1)

    with raw_peer(behave):
        outcome = any_plugin.run("ADD")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b'{"ok":true}', b"")


def test_an_answer_before_the_end_of_the_request_is_read(any_plugin, raw_peer):
    """A daemon that refuses without reading everything, and closes, is heard."""

    def behave(connection):
        connection.recv(100)
        connection.sendall(
            SETTINGS + frame(1, 5, 1, b"\x88" + literal(b"grpc-status", b"7") + literal(b"grpc-message", b"no%21"))
        )
        connection.shutdown(1)

    with raw_peer(behave):
        document = any_plugin.run("ADD", b"{" + b" " * 900000 + b"}").error(193)
    assert "PERMISSION_DENIED: no!" in document["details"]


def test_an_answer_of_a_peer_that_closes_while_we_write_is_read(any_plugin, raw_peer):
    """A broken pipe on the way there does not hide the answer that lies on the way back."""

    def behave(connection):
        window = struct.pack(">I", 1 << 22)
        connection.sendall(SETTINGS + frame(8, 0, 0, window) + frame(8, 0, 1, window))
        received = 0
        while received < 200_000:
            received += len(connection.recv(65536))
        connection.sendall(frame(1, 5, 1, b"\x88" + literal(b"grpc-status", b"7")))
        connection.close()

    with raw_peer(behave):
        document = any_plugin.run("ADD", b"{" + b" " * 1_000_000 + b"}").error(193)
    assert "PERMISSION_DENIED" in document["details"]


RESETS = {0: 193, 2: 193, 7: 11, 8: 11, 11: 11, 12: 193, 0xFFFFFFFF: 193}


@pytest.mark.parametrize(("error", "code"), RESETS.items())
def test_a_reset_stream_has_a_code(any_plugin, raw_peer, error, code):
    """RST_STREAM maps to a gRPC status as the protocol says, and from there to a CNI code."""

    def behave(connection):
        connection.recv(65536)
        connection.sendall(SETTINGS + frame(3, 0, 1, struct.pack(">I", error)))
        connection.recv(1)

    with raw_peer(behave):
        any_plugin.run("CHECK").error(code)


def test_goaway_without_our_stream_is_a_daemon_going_away(any_plugin, raw_peer, spooled):
    """A daemon that shuts down before it took the request: "try again", and a DEL is kept (I3)."""

    def behave(connection):
        connection.recv(65536)
        connection.sendall(SETTINGS + frame(7, 0, 0, bytes(8)))
        connection.recv(65536)

    with raw_peer(behave):
        any_plugin.run("CHECK").error(11)
        assert any_plugin.run("DEL").status == 0
    assert len(spooled()) == 1


def test_a_status_message_of_any_bytes_gives_a_valid_document(any_plugin, raw_peer):
    """What the peer writes into grpc-message is shown, cut and escaped, never trusted to be text."""

    def behave(connection):
        connection.recv(65536)
        text = literal(b"grpc-message", b'%FF%00"\\%0a%zz%' + b"\x01\xfe")
        connection.sendall(SETTINGS + frame(1, 5, 1, b"\x88" + literal(b"grpc-status", b"13") + text))
        connection.recv(1)

    with raw_peer(behave):
        assert "INTERNAL" in any_plugin.run("ADD").error(193)["details"]
