"""The plugin's header decoder against the package `hpack` (PyPI), with a dynamic table of size zero, which is what we announce."""

from __future__ import annotations

from random import Random

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, InvalidTableSizeError

from cni_plugin import hpack as ours
from cni_plugin.errors import PeerError
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob

PRINTABLE = frozenset(b"".join(symbols for _, symbols in ours.HUFFMAN))
"""What the plugin's Huffman table has; all else it may refuse in a header that it wants."""

NAMES = (b":status", b"grpc-status", b"grpc-message", b"content-type", b"x", b"", b"grpc-status-details-bin", b"\x80\xff")
VALUES = (b"200", b"0", b"14", b"application/grpc", b"", b"a b%20c", b"\xc3\xa4", b"~" * 130, b"\x00", b"\\<{^}`|#>'+")
LIST_BYTES_MAX = 1 << 30
ENTRY_BYTES, ANSWER_BYTES = 32, 20_000
"""RFC 9113, 6.5.2: an entry counts 32 bytes beside its text. No answer to us has more than C-core's 16 KB (ours: and some room)."""


class Hpack(Target):
    """A case: `block` is a header block."""

    memory_bytes = 32 << 20

    def generate(self, random: Random) -> Case:
        kind = random.random()
        if kind < 0.1:
            return {"block": noise(random, 400)}
        if kind < 0.102:  # as much as a block may have, of one header
            unit = random.choice((b"\x88", b"\x3e", b"\x0f\x00\x00", b"\x40\x00\x00", b"\x08\x00"))
            return {"block": [(unit, 32768 // len(unit))]}
        block = header_block(random)
        return {"block": mutated(random, block) if kind < 0.7 else block}

    def run(self, case: Case) -> None:
        block = blob(case["block"])
        try:
            found = ours.decode_headers(block)
            refusal = ""
        except PeerError as error:
            found, refusal = [], error.details
        decoder = Decoder(max_header_list_size=LIST_BYTES_MAX)
        decoder.header_table_size = 0
        decoder.max_allowed_table_size = 0
        try:
            read = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except HPACKError as error:
            if not refusal and not _may_be_read(error):
                raise Violation("differs", f"hpack refuses ({error}), we read {found!r:.200}") from error
            return
        expected = [header for header in read if header[0] in ours.WANTED]
        if refusal and not _may_be_refused(refusal, read):
            raise Violation("differs", f"hpack reads {read!r:.200}, we refuse: {refusal}")
        if not refusal and found != expected:
            raise Violation("differs", f"hpack reads {expected!r:.200}, we read {found!r:.200}")


def header_block(random: Random) -> bytes:
    """Make a correct block as servers send them: indexed and literal, with Huffman and without."""
    encoder = Encoder()
    encoder.header_table_size = 0
    headers = [(random.choice(NAMES), random.choice(VALUES)) for _ in range(random.randrange(1, 6))]
    if random.random() < 0.6:
        headers = [(b":status", random.choice((b"200", b"204", b"404", b"100"))), *headers]
    block = encoder.encode(headers, huffman=random.random() < 0.6)
    # The encoder announces the table's new size first; we have asked for it, so servers may or may not.
    return block if random.random() < 0.5 else block[1:]


def _may_be_read(error: HPACKError) -> bool:
    """Where we are more lenient: table sizes, for there is no table, and the Huffman code of headers that are not wanted."""
    text = str(error).lower()
    return isinstance(error, InvalidTableSizeError) or "table size" in text or "huffman" in text


def _may_be_refused(refusal: str, read: list[tuple[bytes, bytes]]) -> bool:
    """Where we are stricter: numbers beyond 28 bits, long lists, and Huffman codes of bytes that no gRPC status has."""
    if "28 bits" in refusal:
        return True
    if "RFC 9113" in refusal:
        return sum(ENTRY_BYTES + len(name) + len(value) for name, value in read) > ANSWER_BYTES
    return "Huffman" in refusal and any(byte not in PRINTABLE for name, value in read for byte in name + value)


def make() -> Target:
    """Make the target."""
    return Hpack()
