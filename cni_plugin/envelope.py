"""The messages of `proto/vpc_ipamd/v1/cni.proto`, encoded and decoded by hand.

The protobuf runtime takes tens of milliseconds to import and does not exist for MicroPython. Three messages with scalar fields, one of
them nested, need neither descriptors nor generated code. `tests/contract/plugin` compares this file with the generated code. Unknown
fields are skipped, because releases only add fields and never change them. Malformed bytes are a PeerError.
"""

from cni_plugin.errors import PeerError

PROTOCOL_MIN = 1  # lowest and highest version of the envelope that this plugin supports
PROTOCOL_MAX = 1
# Most fields of one message. Ours: a reply and its error have four each. Without this bound a reply of 4 MiB that has only empty
# fields would take 150 MB here.
FIELDS_MAX = 1024
VARINT_BYTES_MAX = 10  # protobuf encoding: 64 bits in groups of seven

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5


class Reply:
    """A decoded ExecReply. `is_error`: whether it has the field `error`. Only then `code`, `message`, `details` and `cni_version` have
    a meaning."""

    def __init__(self) -> None:
        self.protocol = 0
        self.result = b""
        self.is_error = False
        self.code = 0
        self.message = b""
        self.details = b""
        self.cni_version = b""
        # STATUS only: the daemon does not serve ADD yet, and answers with success because its start may still end in time.
        self.is_starting = False


def encode_request(
    verb: str,
    *,
    container_id: bytes = b"",
    netns: bytes = b"",
    ifname: bytes = b"",
    args: bytes = b"",
    path: bytes = b"",
    config: bytes = b"",
    plugin_version: str = "",
) -> bytes:
    """Serialize an ExecRequest. The caller has checked that all byte fields except `config` are UTF-8."""
    fields = (verb.encode(), container_id, netns, ifname, args, path, config)
    parts = [_length_delimited(number + 1, fields[number]) for number in range(len(fields))]
    parts.append(bytes([8 << 3, PROTOCOL_MIN, 9 << 3, PROTOCOL_MAX]))
    parts.append(_length_delimited(10, plugin_version.encode()))
    return b"".join(parts)


def decode_reply(data: bytes) -> Reply:
    """Parse an ExecReply. Raises: PeerError, and nothing else, if the bytes are not an ExecReply."""
    reply = Reply()
    for number, wire_type, value, content in _fields(data):
        if number == 1 and wire_type == _VARINT:
            reply.protocol = value & 0xFFFFFFFF
        elif number == 2 and wire_type == _BYTES:
            reply.result = content
        elif number == 3 and wire_type == _BYTES:
            reply.is_error = True
            _decode_error(content, reply)
        elif number == 4 and wire_type == _VARINT:
            reply.is_starting = value != 0
    return reply


def _decode_error(data: bytes, reply: Reply) -> None:
    for number, wire_type, value, content in _fields(data):
        if number == 1 and wire_type == _VARINT:
            reply.code = value & 0xFFFFFFFF
        elif wire_type == _BYTES:
            if number == 2:
                reply.message = content
            elif number == 3:
                reply.details = content
            elif number == 4:
                reply.cni_version = content


def _length_delimited(number: int, content: bytes) -> bytes:
    if not content:
        return b""  # proto3 leaves out an empty field
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = []
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(data: bytes) -> "list[tuple[int, int, int, bytes]]":
    """Split a message into its fields, in order.

    Returns: (field number, wire type, value, content). `value` is the number of a varint, `content` the bytes of any other type.
    """
    fields = []  # type: list[tuple[int, int, int, bytes]]
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, wire_type, value, content = key >> 3, key & 7, 0, b""
        if number == 0:
            raise PeerError("the reply has a field number 0")
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
        else:
            if wire_type == _BYTES:
                size, position = _read_varint(data, position)
            elif wire_type == _FIXED64:
                size = 8
            elif wire_type == _FIXED32:
                size = 4
            else:
                raise PeerError("the reply has a field of wire type " + str(wire_type))
            if size > len(data) - position:
                raise PeerError("the reply ends within a field")
            content = data[position : position + size]
            position += size
        if len(fields) >= FIELDS_MAX:
            raise PeerError("the reply has more than " + str(FIELDS_MAX) + " fields")
        fields.append((number, wire_type, value, content))
    return fields


def _read_varint(data: bytes, position: int) -> "tuple[int, int]":
    value = 0
    for index in range(VARINT_BYTES_MAX):
        if position + index >= len(data):
            raise PeerError("the reply ends within a number")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise PeerError("the reply has a number of more than ten bytes")
