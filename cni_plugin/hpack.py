"""Header blocks: the part of RFC 7541 that is needed to send one request and to find three headers in the answer.

Requests use literals without indexing and without Huffman. For answers we announce a header table of size zero (`h2.py`), so a
correct peer uses no dynamic table and none is implemented: one call per connection would gain nothing from it.
Of the static table only `:status` is read. Everything malformed is a PeerError.
"""

from cni_plugin.errors import PeerError

STATIC_COUNT = 61  # RFC 7541 appendix A
STATUS_FIRST = 8  # appendix A: entries 8 to 14 are :status with these values
STATUS_VALUES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")
WANTED = (b":status", b"grpc-status", b"grpc-message")
INTEGER_BYTES_MAX = 4  # ours, because no length here needs more than 28 bits
LIST_BYTES_MAX = 32768  # ours, announced as SETTINGS_MAX_HEADER_LIST_SIZE: C-core's own limit is 16 KB
ENTRY_BYTES = 32  # RFC 9113, 6.5.2: what an entry counts beside its name and value; so a byte for each of a million costs nothing
_NAME_BYTES_MAX = 12  # the longest of WANTED; Huffman makes none of their characters longer

# RFC 7541 appendix B is a canonical code: within one length codes count upwards, so the symbols per length in code order say it
# all. Only what may stand in a gRPC status or message is listed (NUL keeps the count right); all longer codes are refused.
HUFFMAN = (
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b'!"()?'),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\x00$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, b"\\"),
)


def encode_literal(name: bytes, value: bytes) -> bytes:
    """One header as literal without indexing. `name` and `value` are shorter than 127 bytes (all ours are)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def decode_headers(block: bytes) -> "list[tuple[bytes, bytes]]":
    """Decode a complete header block.

    Returns: (name, value) in order, those in WANTED only.
    Raises: PeerError if it is malformed, refers to a dynamic table that we did not offer, or counts more than LIST_BYTES_MAX.
    """
    headers = []
    position = 0
    list_bytes = 0
    while position < len(block):
        list_bytes += ENTRY_BYTES
        if list_bytes > LIST_BYTES_MAX:
            raise PeerError("headers of more than " + str(LIST_BYTES_MAX) + " bytes, by RFC 9113's count")
        first = block[position]
        if first & 0x80:  # indexed
            index, position = _integer(block, position, 7)
            if not 1 <= index <= STATIC_COUNT:
                raise PeerError("a header refers to entry " + str(index) + " of a table that we did not offer")
            if STATUS_FIRST <= index < STATUS_FIRST + len(STATUS_VALUES):
                headers.append((b":status", STATUS_VALUES[index - STATUS_FIRST]))
            continue
        if first & 0xE0 == 0x20:  # table size update: 0, which we asked for, is all that there can be (RFC 7541, 4.2)
            size, position = _integer(block, position, 5)
            if size:
                raise PeerError("a header table of " + str(size) + " bytes, and we allowed none")
            continue
        index, position = _integer(block, position, 6 if first & 0x40 else 4)
        if index > STATIC_COUNT:
            raise PeerError("a header refers to entry " + str(index) + " of a table that we did not offer")
        name = b""
        if index == 0:
            raw, is_huffman, position = _string(block, position)
            list_bytes += len(raw)
            name = _huffman(raw) if is_huffman and len(raw) <= _NAME_BYTES_MAX else raw
        elif STATUS_FIRST <= index < STATUS_FIRST + len(STATUS_VALUES):
            name = b":status"
        raw, is_huffman, position = _string(block, position)
        list_bytes += len(raw)
        if name in WANTED:
            headers.append((name, _huffman(raw) if is_huffman else raw))
    return headers


def _integer(block: bytes, position: int, prefix_bits: int) -> "tuple[int, int]":
    limit = (1 << prefix_bits) - 1
    value = block[position] & limit
    position += 1
    if value < limit:
        return value, position
    for index in range(INTEGER_BYTES_MAX):
        if position >= len(block):
            raise PeerError("a header block ends within a number")
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position
    raise PeerError("a header block has a number beyond 28 bits")


def _string(block: bytes, position: int) -> "tuple[bytes, bool, int]":
    if position >= len(block):
        raise PeerError("a header block ends before a string")
    is_huffman = block[position] & 0x80 != 0
    size, position = _integer(block, position, 7)
    if size > len(block) - position:
        raise PeerError("a header block ends within a string")
    return block[position : position + size], is_huffman, position + size


_symbols = {}  # type: dict[int, int]  # a code with a 1 in front of it, so that its length counts -> its symbol


def _huffman(raw: bytes) -> bytes:
    """Decode; C-core never sends Huffman, other servers do, so the table is only made when one is met, and once."""
    symbols = _symbols
    if not symbols:
        code = previous = 0
        for bits, alphabet in HUFFMAN:
            code <<= bits - previous
            previous = bits
            for symbol in alphabet:
                symbols[1 << bits | code] = symbol
                code += 1
    out = []
    code = 1
    for byte in raw:
        for shift in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | byte >> shift & 1
            if code in symbols:
                out.append(symbols[code])
                code = 1
            elif code >> 20:
                raise PeerError("a header has a Huffman code outside printable ASCII")
    if code > 0xFF or code & (code + 1):
        raise PeerError("a header has wrong Huffman padding")
    return bytes(out)
