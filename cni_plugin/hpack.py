"""Header blocks: the part of RFC 7541 that is needed to send one request and to find three headers in the answer.

Requests use literals without indexing and without Huffman codes. For answers we announce a header table of size zero (`h2.py`), so a
correct peer uses no dynamic table. None is implemented, because a connection with one call would gain nothing from it. Of the static
table only the entries for `:status` are read. A malformed block is a PeerError.
"""

from cni_plugin.errors import PeerError

STATIC_COUNT = 61  # RFC 7541 appendix A
STATUS_FIRST = 8  # appendix A: entries 8 to 14 are :status with these values
STATUS_VALUES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")
WANTED = (b":status", b"grpc-status", b"grpc-message")
INTEGER_BYTES_MAX = 4  # ours, because no length here needs more than 28 bits
LIST_BYTES_MAX = 32768  # ours, twice the limit of gRPC's C-core (16 KB); `h2.py` announces it as SETTINGS_MAX_HEADER_LIST_SIZE
# RFC 9113, 6.5.2: each entry counts as its name, its value and this many bytes more, so that a block of very many short entries is
# refused too.
ENTRY_BYTES = 32
# Longest Huffman code of a name that is decoded, in bytes. The longest name of WANTED has 12, and its Huffman code is not longer,
# because no character of these names has a code of more than 8 bits.
_NAME_BYTES_MAX = 12

# RFC 7541 appendix B is a canonical code: within one length codes count upwards, so a list of the symbols of each length, in code
# order, defines it. Only characters of gRPC statuses and messages are listed, and NUL, because its code comes before the code of `$`.
# Codes of more than 19 bits are refused.
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

    Returns: (name, value) of the headers in WANTED, in order.
    Raises: PeerError if the block is malformed, refers to a dynamic table, or is larger than LIST_BYTES_MAX by RFC 9113's count.
    """
    headers = []
    position = 0
    list_bytes = 0
    while position < len(block):
        list_bytes += ENTRY_BYTES
        if list_bytes > LIST_BYTES_MAX:
            raise PeerError("headers of more than " + str(LIST_BYTES_MAX) + " bytes, by RFC 9113's count")
        first = block[position]
        if first & 0x80:
            status, position = _indexed_status(block, position)
            if status:
                headers.append((b":status", status))
        elif first & 0xE0 == 0x20:
            position = _table_size_update(block, position)
        else:
            name, value, size, position = _literal(block, position)
            list_bytes += size
            if name in WANTED:
                headers.append((name, value))
    return headers


def _indexed_status(block: bytes, position: int) -> "tuple[bytes, int]":
    """Read a header that is an entry of the static table. Returns: its value if it is :status, else b""; the position after it."""
    index, position = _integer(block, position, 7)
    if not 1 <= index <= STATIC_COUNT:
        raise PeerError("a header refers to entry " + str(index) + " of a table that we did not offer")
    if not _is_status(index):
        return b"", position
    return STATUS_VALUES[index - STATUS_FIRST], position


def _table_size_update(block: bytes, position: int) -> int:
    """Read a change of the dynamic table's size. Returns: the position after it.

    The size must be 0, because that is the limit that we announced (RFC 7541, 4.2).
    """
    size, position = _integer(block, position, 5)
    if size:
        raise PeerError("a header table of " + str(size) + " bytes, and we allowed none")
    return position


def _literal(block: bytes, position: int) -> "tuple[bytes, bytes, int, int]":
    """Read a header whose value is a literal.

    Returns: name, value, size of both in bytes, the position after the header. The name is b"" if it is an index of another entry
        than :status. The value of a header that is not in WANTED is not decoded from its Huffman code, to save time.
    """
    is_indexed = block[position] & 0x40
    index, position = _integer(block, position, 6 if is_indexed else 4)
    if index > STATIC_COUNT:
        raise PeerError("a header refers to entry " + str(index) + " of a table that we did not offer")
    name = b""
    if _is_status(index):
        name = b":status"
    name_bytes = 0
    if index == 0:
        name, is_huffman, position = _string(block, position)
        name_bytes = len(name)
        if is_huffman and name_bytes <= _NAME_BYTES_MAX:
            name = _huffman(name)
    value, is_huffman, position = _string(block, position)
    size = name_bytes + len(value)
    if is_huffman and name in WANTED:
        value = _huffman(value)
    return name, value, size, position


def _is_status(index: int) -> bool:
    return STATUS_FIRST <= index < STATUS_FIRST + len(STATUS_VALUES)


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


_symbols = {}  # type: dict[int, int]  # code with a 1 in front, so that codes of different lengths differ -> symbol


def _huffman(raw: bytes) -> bytes:
    """Decode a Huffman code. gRPC's C-core never sends one, so the table of symbols is made at the first use."""
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
