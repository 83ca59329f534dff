"""The JSON documents that the plugin writes itself, and the one key that it searches for.

`json` takes 6 ms to import and is not needed: results are printed as the daemon sent them. Everything works on bytes, because
messages may quote what a hostile peer sent: any byte string becomes a valid JSON string.
Rejected: a small JSON parser. The daemon parses the configuration, and two parsers can disagree.
"""

# A copy of ipamd/model/cniversion.py: the plugin imports nothing of the daemon. tests/unit/model/test_cniversion.py holds them equal.
SUPPORTED_VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
DEFAULT_VERSION = SUPPORTED_VERSIONS[-1]  # ours, because an answer without a version is no answer: the newest we speak
VERSION_BYTES = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+-"  # semver
VERSION_BYTES_MAX = 32  # ours, because no release of the spec needs 32 characters

_KEY = b'"cniVersion"'
_SPACE = b" \t\r\n"
_HEX = "0123456789abcdef"


def version_document(cni_version: str) -> bytes:
    """Answer VERSION: the request's version, and all that we support."""
    supported = ",".join(['"' + version + '"' for version in SUPPORTED_VERSIONS])
    return ('{"cniVersion":"' + cni_version + '","supportedVersions":[' + supported + "]}\n").encode()


def error_document(cni_version: str, code: int, message: bytes, details: bytes) -> bytes:
    """Render the CNI error structure. `cni_version` comes from `scan_cni_version` or the daemon's reply."""
    head = b'{"cniVersion":' + quoted(cni_version.encode()) + b',"code":' + str(code).encode()
    return head + b',"msg":' + quoted(message) + b',"details":' + quoted(details) + b"}\n"


def quoted(text: bytes) -> bytes:
    """Make a JSON string of any bytes; bytes that are not UTF-8 become U+FFFD."""
    try:
        text.decode()
        is_utf8 = True
    except UnicodeError:
        is_utf8 = False
    parts = [b'"']
    start = 0
    for index in range(len(text)):
        byte = text[index]
        if 0x20 <= byte < 0x7F and byte != 0x22 and byte != 0x5C:
            continue
        if byte >= 0x80 and is_utf8:
            continue
        parts.append(text[start:index])
        code = 0xFFFD if byte >= 0x80 else byte
        parts.append(("\\u" + "".join([_HEX[code >> shift & 15] for shift in (12, 8, 4, 0)])).encode())
        start = index + 1
    parts.append(text[start:])
    parts.append(b'"')
    return b"".join(parts)


def scan_cni_version(config: bytes) -> str:
    """Find the top-level `cniVersion` of a network configuration.

    Returns: the version, or DEFAULT_VERSION if the scanner finds none.
    It follows strings and nesting, so it ignores the key of a nested plugin and text in a value. Limits: it does not check that
    the rest is JSON; it does not recognise a key or value written with escapes; of two keys the first counts; a value that is no
    plausible version (other characters, or more than 32) counts as absent.
    """
    if config.find(_KEY) < 0:
        return DEFAULT_VERSION
    depth = 0
    position = 0
    while True:
        quote = config.find(b'"', position)
        if quote < 0:
            return DEFAULT_VERSION
        between = config[position:quote]
        depth += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        end = _string_end(config, quote)
        if end < 0:
            return DEFAULT_VERSION
        position = end
        if depth == 1 and config[quote:end] == _KEY:
            colon = _skip_space(config, end)
            if config[colon : colon + 1] == b":":
                return _version_at(config, _skip_space(config, colon + 1))


def looks_like_object(config: bytes) -> bool:
    """Tell whether the text has the braces of a JSON object: enough to refuse an empty or truncated configuration."""
    stripped = config.strip()
    return len(stripped) >= 2 and stripped[:1] == b"{" and stripped[-1:] == b"}"


def _version_at(config: bytes, position: int) -> str:
    if config[position : position + 1] != b'"':
        return DEFAULT_VERSION
    version = config[position + 1 : config.find(b'"', position + 1)]
    if not 0 < len(version) <= VERSION_BYTES_MAX:
        return DEFAULT_VERSION
    for byte in version:
        if byte not in VERSION_BYTES:
            return DEFAULT_VERSION
    return version.decode()


def _string_end(config: bytes, quote: int) -> int:
    """Position after the string that opens at `quote`; -1 if it does not close."""
    position = quote + 1
    while True:
        end = config.find(b'"', position)
        if end < 0:
            return -1
        escape = config.find(b"\\", position, end)
        if escape < 0:
            return end + 1
        position = escape + 2


def _skip_space(config: bytes, position: int) -> int:
    while config[position : position + 1] and config[position] in _SPACE:
        position += 1
    return position
