"""Write the JSON documents that do not come from the daemon, and find the key `cniVersion` of a configuration.

`json` takes 6 ms to import and is not needed: results are printed as the daemon sent them. The functions work on bytes, because a
message may quote bytes of a hostile peer; any byte string becomes a valid JSON string.
Rejected: a small JSON parser. The daemon parses the configuration, and two parsers can disagree.
"""

# A copy of the versions in ipamd/model/cniresult.py, because the plugin imports nothing of the daemon.
# tests/unit/model/test_cniversion.py checks that both are equal.
SUPPORTED_VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
DEFAULT_VERSION = SUPPORTED_VERSIONS[-1]  # ours: an answer needs a version, also if the configuration has none
VERSION_BYTES = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+-"  # the characters that semver allows
VERSION_BYTES_MAX = 32  # ours, because no release of the spec needs 32 characters
# Most strings that a scan reads; an escaped quote in a string counts as one more. Ours: a scan of this many takes a fraction of a
# second, and a GC of 10,000 attachments has fewer.
SCAN_STEPS_MAX = 65536

_KEY = b'"cniVersion"'
_SPACE = b" \t\r\n"
_SPACE_CHUNK = 1024  # bytes that are searched at once for the end of white space
_HEX = "0123456789abcdef"


def version_document(cni_version: str) -> bytes:
    """Make the answer to VERSION: the version of the request, and all versions that we support."""
    supported = ",".join(['"' + version + '"' for version in SUPPORTED_VERSIONS])
    return ('{"cniVersion":"' + cni_version + '","supportedVersions":[' + supported + "]}\n").encode()


def error_document(cni_version: str, code: int, message: bytes, details: bytes) -> bytes:
    """Render the CNI error structure. `cni_version` comes from `scan_cni_version` or the daemon's reply."""
    head = b'{"cniVersion":' + quoted(cni_version.encode()) + b',"code":' + str(code).encode()
    return head + b',"msg":' + quoted(message) + b',"details":' + quoted(details) + b"}\n"


def quoted(text: bytes) -> bytes:
    """Make a JSON string of any bytes. All characters outside printable ASCII are escaped.

    So neither control characters nor characters that change the direction of text reach a terminal. If `text` is not UTF-8, each
    byte above 0x7F becomes U+FFFD.
    """
    try:
        text.decode()
        is_utf8 = True
    except UnicodeError:
        is_utf8 = False
    parts = [b'"']
    start = 0
    for index in range(len(text)):
        byte = text[index]
        if (0x20 <= byte < 0x7F and byte != 0x22 and byte != 0x5C) or index < start:
            continue
        parts.append(text[start:index])
        start = index + 1
        code = byte
        if byte >= 0x80:
            code = 0xFFFD
            if is_utf8:
                start += 1 + (byte >= 0xE0) + (byte >= 0xF0)  # the bytes that continue this character
                code = ord(text[index:start].decode())
        if code > 0xFFFF:
            code -= 0x10000
            parts.append(_escaped(0xD800 | code >> 10))
            code = 0xDC00 | code & 0x3FF
        parts.append(_escaped(code))
    parts.append(text[start:])
    parts.append(b'"')
    return b"".join(parts)


def scan_cni_version(config: bytes) -> str:
    """Find the top-level `cniVersion` of a network configuration.

    Returns: the version, or DEFAULT_VERSION if the scanner finds none.
    The scanner follows strings and nesting, so it ignores the key of a nested plugin and text in a value. It does not check that the
    rest is JSON, and does not recognise a key or value that is written with escapes. If there are two keys, the first counts. A value
    that is not a plausible version (other characters, or more than 32) counts as absent. The scanner gives up after SCAN_STEPS_MAX
    strings. Its time is linear, because it reads every byte a few times at most, even in hostile text.
    """
    if config.find(_KEY) < 0:
        return DEFAULT_VERSION
    depth = 0
    position = 0
    steps = SCAN_STEPS_MAX
    while steps > 0:
        quote = config.find(b'"', position)
        if quote < 0:
            return DEFAULT_VERSION
        between = config[position:quote]
        depth += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        end, steps = _string_end(config, quote, steps)
        if end < 0:
            return DEFAULT_VERSION
        position = end
        if depth == 1 and config[quote:end] == _KEY:
            colon = _skip_space(config, end)
            if config[colon : colon + 1] == b":":
                return _version_at(config, _skip_space(config, colon + 1))
    return DEFAULT_VERSION


def _version_at(config: bytes, position: int) -> str:
    if config[position : position + 1] != b'"':
        return DEFAULT_VERSION
    end = config.find(b'"', position + 1)
    version = config[position + 1 : max(end, 0)]
    if not 0 < len(version) <= VERSION_BYTES_MAX:
        return DEFAULT_VERSION
    for byte in version:
        if byte not in VERSION_BYTES:
            return DEFAULT_VERSION
    return version.decode()


def _string_end(config: bytes, quote: int, steps: int) -> "tuple[int, int]":
    """Find the end of the string that opens at `quote`. Returns: the position after it, -1 if it does not close; the steps left.

    A quote after an odd number of backslashes is a character of the string. Only backslashes after the previous quote count.
    """
    start = quote + 1
    while steps > 0:
        steps -= 1
        end = config.find(b'"', start)
        if end < 0:
            break
        first = end
        while first > start and config[first - 1] == 0x5C:
            first -= 1
        if (end - first) & 1 == 0:
            return end + 1, steps
        start = end + 1
    return -1, steps


def _skip_space(config: bytes, position: int) -> int:
    while position < len(config):
        chunk = config[position : position + _SPACE_CHUNK]
        unread_count = len(chunk.lstrip(_SPACE))
        position += len(chunk) - unread_count
        if unread_count:
            break
    return position


def _escaped(code: int) -> bytes:
    return ("\\u" + "".join([_HEX[code >> shift & 15] for shift in (12, 8, 4, 0)])).encode()
