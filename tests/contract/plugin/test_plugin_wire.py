"""The hand-written codecs against their references (generated protobuf code, json, the examples of RFC 7541), and fuzzed.

Invariant of all decoders: any bytes give a result or the plugin's own error, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni_plugin import cnijson, envelope, h2, hpack
from cni_plugin.errors import DaemonAway, PeerError
from ipamd.pb import cni_pb2

TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
UINT32 = st.integers(0, 2**32 - 1)


@given(st.sampled_from(["ADD", "DEL", "CHECK", "GC", "STATUS"]), TEXT, TEXT, TEXT, TEXT, TEXT, st.binary(max_size=70000))
def test_requests_are_what_generated_code_reads(verb, container_id, netns, ifname, args, path, config):
    """ExecRequest encoded by hand parses, with every field in its place."""
    texts = {"container_id": container_id, "netns": netns, "ifname": ifname, "args": args, "path": path}
    encoded = envelope.encode_request(
        verb, config=config, plugin_version="1", **{name: text.encode() for name, text in texts.items()}
    )
    expected = cni_pb2.ExecRequest(verb=verb, config=config, protocol_min=1, protocol_max=1, plugin_version="1", **texts)
    assert cni_pb2.ExecRequest.FromString(encoded) == expected


@given(UINT32, st.binary(), st.booleans(), UINT32, TEXT, TEXT, TEXT)
def test_replies_of_generated_code_are_read(protocol, result, is_error, code, message, details, version):
    """ExecReply decoded by hand has every field of the message."""
    original = cni_pb2.ExecReply(protocol=protocol, result=result)
    if is_error:
        original.error.CopyFrom(cni_pb2.CniError(code=code, message=message, details=details, cni_version=version))
    reply = envelope.decode_reply(original.SerializeToString())
    assert (reply.protocol, reply.result, reply.is_error) == (protocol, result, is_error)
    if is_error:
        assert (reply.code, reply.message.decode(), reply.details.decode()) == (code, message, details)
        assert reply.cni_version.decode() == version


def test_the_contract_has_the_fields_that_are_encoded_here():
    """A field added to the contract is noticed here, not on a node."""
    fields = {
        message: [field.name for field in getattr(cni_pb2, message).DESCRIPTOR.fields]
        for message in ("ExecRequest", "ExecReply", "CniError")
    }
    assert fields == {
        "ExecRequest": [
            "verb", "container_id", "netns", "ifname", "args", "path", "config", "protocol_min", "protocol_max", "plugin_version",
        ],
        "ExecReply": ["protocol", "result", "error", "is_starting"],
        "CniError": ["code", "message", "details", "cni_version"],
    }  # fmt: skip


def test_unknown_fields_are_skipped():
    """A newer daemon may send more: fields are only ever added."""
    unknown = bytes([15 << 3, 1]) + b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x7a\x02ab" + b"\xfa\xff\xff\xff\x0f\x00"
    reply = envelope.decode_reply(unknown + cni_pb2.ExecReply(protocol=1, result=b"r").SerializeToString() + unknown)
    assert (reply.protocol, reply.result) == (1, b"r")


@given(st.binary(max_size=200))
@example(b"\x12" + b"\xff" * 9 + b"\x01")
def test_any_bytes_are_a_reply_or_a_peer_error(data):
    """The envelope decoder raises PeerError or nothing."""
    with contextlib.suppress(PeerError):
        envelope.decode_reply(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_headers_or_a_peer_error(block):
    """The HPACK decoder raises PeerError or nothing."""
    with contextlib.suppress(PeerError):
        hpack.decode_headers(block)


FRAME = st.builds(
    lambda kind, flags, stream, payload: h2.frame(kind, flags, stream, payload),
    st.sampled_from([*range(10), 200]),
    st.integers(0, 255),
    st.sampled_from([0, 1, 3]),
    st.one_of(st.binary(max_size=40), st.sampled_from([b"\x88", bytes(8), bytes(4), b"\x00\x0bgrpc-status\x010"])),
)


@given(st.lists(st.one_of(FRAME, st.binary(max_size=20)), max_size=12), st.integers(1, 60), st.binary(max_size=100))
def test_any_stream_of_frames_ends_in_a_result_or_an_error_of_ours(frames, chunk_bytes, message):
    """The call's state machine raises PeerError or DaemonAway or nothing, wherever the stream is cut."""
    stream = h2.frame(h2.SETTINGS, 0, 0, b"") + b"".join(frames)
    call = h2.UnaryCall("/x/Y", message, timeout_ms=1)
    try:
        for position in range(0, len(stream), chunk_bytes):
            call.outgoing()
            call.receive(stream[position : position + chunk_bytes])
    except (PeerError, DaemonAway):
        return
    assert not call.is_done or 0 <= call.status <= 99


@given(st.binary(max_size=400), st.integers(1, 50))
def test_cutting_makes_no_difference(body, chunk_bytes):
    """An answer gives the same reply however its bytes arrive."""
    answer = (
        h2.frame(h2.SETTINGS, 0, 0, b"")
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\x88")
        + h2.frame(h2.DATA, 0, 1, b"\x00" + len(body).to_bytes(4, "big") + body)
        + h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, hpack.encode_literal(b"grpc-status", b"0"))
    )
    call = h2.UnaryCall("/x/Y", b"", timeout_ms=1)
    for position in range(0, len(answer), chunk_bytes):
        assert not call.is_done
        call.receive(answer[position : position + chunk_bytes])
    assert (call.is_done, call.status, call.reply) == (True, 0, body)


@pytest.mark.parametrize(
    ("encoded", "text"),
    [("6402", b"302"), ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"), ("a8eb10649cbf", b"no-cache"), ("640eff", b"307"),
     ("9bd9ab", b"gzip"), ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT")],
)  # fmt: skip
def test_huffman_examples_of_the_rfc(encoded, text):
    """RFC 7541 appendix C: the code derived from the symbol order is the one that is standardized."""
    raw = bytes.fromhex(encoded)
    block = b"\x00\x0cgrpc-message" + bytes([0x80 | len(raw)]) + raw
    assert hpack.decode_headers(block) == [(b"grpc-message", text)]


def test_a_header_list_is_bounded_by_what_its_entries_count():
    """RFC 9113, 6.5.2: 32 bytes and the text for each entry; we announce the bound, and hold a peer to it."""
    fits = hpack.LIST_BYTES_MAX // hpack.ENTRY_BYTES
    assert len(hpack.decode_headers(b"\x88" * fits)) == fits
    with pytest.raises(PeerError) as refused:
        hpack.decode_headers(b"\x88" * (fits + 1))
    assert "RFC 9113" in refused.value.details
    assert (
        h2.SETTING_HEADER_LIST.to_bytes(2, "big") + hpack.LIST_BYTES_MAX.to_bytes(4, "big")
        in h2.UnaryCall("/x/Y", b"", timeout_ms=1).outgoing()
    )


def test_huffman_covers_all_that_a_status_message_may_have():
    """Every printable ASCII character has a code; percent-encoding leaves nothing else in grpc-message."""
    symbols = b"".join(alphabet for _, alphabet in hpack.HUFFMAN)
    assert set(string.printable[:95].encode()) <= set(symbols)
    assert len(set(symbols)) == len(symbols) == 96  # and NUL
    assert [bits for bits, _ in hpack.HUFFMAN] == sorted(bits for bits, _ in hpack.HUFFMAN)


@given(st.binary(max_size=200))
def test_any_bytes_make_a_json_string(data):
    """What is quoted is valid JSON in printable ASCII, whatever a stranger wrote, and valid text survives unchanged."""
    written = cnijson.quoted(data)
    assert all(0x20 <= byte < 0x7F for byte in written)
    parsed = json.loads(written)
    try:
        assert parsed == data.decode()
    except UnicodeDecodeError:
        assert len(parsed) == len(data)


@given(st.text(max_size=200))
@example("\x1b[2J\x7f\x9b\u202e\u2028\U0001f600\u00e4")
def test_any_text_survives_quoting(text):
    """What is printed is printable ASCII; a parser gets the text back, characters beyond 16 bits included."""
    written = cnijson.quoted(text.encode())
    assert json.loads(written) == text
    assert all(0x20 <= byte < 0x7F for byte in written)


@given(st.integers(1, 999), st.binary(max_size=50), st.binary(max_size=50))
def test_error_documents_are_always_valid(code, message, details):
    """The error structure parses whatever stands in its texts."""
    document = json.loads(cnijson.error_document("1.0.0", code, message, details))
    assert (list(document), document["code"]) == (["cniVersion", "code", "msg", "details"], code)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT, st.sampled_from(["cniVersion", '"cniVersion"', "\\"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(TEXT, st.sampled_from(["cniVersion", 'cniVersion":', "\\"])), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["0.3.1", "1.1.0", "1.0.0-rc.1"]), st.booleans())
def test_the_scanner_agrees_with_a_json_parser(value, indent, is_ascii, version, is_present):
    """In any JSON object whose version is written without escapes the scanner finds what a parser finds, and only at the top."""
    document = {"a": value, **({"cniVersion": version} if is_present else {}), "z": value}
    found = cnijson.scan_cni_version(json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode())
    assert found == (version if is_present else cnijson.DEFAULT_VERSION)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from([b'"cniVersion"', b'"', b"{", b"}", b"[", b":", b"\\", b" ", b"1"]), max_size=20).map(b"".join),
    )
)
def test_the_scanner_ends_on_any_bytes(config):
    """The scanner returns a plausible version for whatever stands on standard input."""
    version = cnijson.scan_cni_version(config)
    assert 0 < len(version) <= 32
    assert version.isascii()


class Watched(bytes):
    """A configuration that counts how many of its bytes are searched, and in how many steps."""

    searched = 0
    steps = 0

    def find(self, part, start=0, end=None):
        """Search as bytes do."""
        found = super().find(part, start, len(self) if end is None else end)
        self.searched += (found if found >= 0 else len(self) if end is None else end) - start
        self.steps += 1
        return found


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"a":"' + b"\\a" * 500_000 + b'"',
        b'{"a":"' + b'\\"' * 500_000 + b'"',
        b'{"a":"' + b"\\" * 1_000_000 + b'"',
        b"{" + b'""' * 500_000,
        b"{" + b'"cniVersion"' * 80_000,
        b'{"cniVersion"' + b" " * 1_000_000 + b'"x"',
        b"[" * 1_000_000,
    ],
    ids=["escapes", "escaped-quotes", "backslashes", "empty-strings", "keys", "spaces", "brackets"],
)
def test_the_scanner_reads_every_byte_a_few_times_at_most(hostile):
    """1 MiB made to be slow to read costs no more than 1 MiB: an error must not come after the verb's deadline."""
    config = Watched(hostile + b',"cniVersion":"0.4.0"}')
    cnijson.scan_cni_version(config)
    assert config.searched <= 4 * len(config)
    assert config.steps <= 4 * cnijson.SCAN_STEPS_MAX


@pytest.mark.parametrize(("backslashes", "is_escaped"), [(0, False), (1, True), (2, False), (3, True), (4, False)])
def test_a_quote_after_an_odd_number_of_backslashes_ends_no_string(backslashes, is_escaped):
    """The string goes on, and the key in it is text."""
    config = b'{"a":"' + b"\\" * backslashes + b'","cniVersion":"0.4.0","b":"'
    assert cnijson.scan_cni_version(config + b'"}') == (cnijson.DEFAULT_VERSION if is_escaped else "0.4.0")
