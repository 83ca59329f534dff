"""The runtime's request: verb, identity and configuration, checked before anything is sent.

An invalid environment is answered here with CNI code 4 and the variable's name, even if the daemon is away, so nothing invalid
reaches the spool. Values are bytes until they are known to be UTF-8, because the environment may contain any bytes.
The configuration is forwarded and not parsed. The plugin checks only its size, that it is not empty for a verb in NEEDS_CONFIG, and,
before a DEL is spooled, that it begins and ends with braces.
"""

from cni_plugin import envelope, errors
from cni_plugin.errors import PluginError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

STDIN = 0
# A pod's annotations have at most 256 KiB (Kubernetes, TotalAnnotationSizeLimitB), which Go's JSON escapes to six times as much. The
# remaining 256 KiB are ours: a conflist has a few KB, and GC's list of attachments about 100 bytes for each.
CONFIG_BYTES_MAX = 7 << 18
CONTAINER_ID_BYTES_MAX = 160  # ipamd/model/ids.py, CONTAINER_ID_MAX; CRI IDs have 64
NETNS_BYTES_MAX = 4096  # Linux PATH_MAX
IFNAME_BYTES_MAX = 15  # Linux IFNAMSIZ less the NUL
READ_BYTES = 16384  # ours, because a usual configuration has a few KB, and MicroPython's heap has room for the buffer

# Longest run of the process for each verb, on the monotonic clock. kubelet gives RunPodSandbox 4 minutes, and containerd kills a
# plugin when its caller gives up. Each deadline is well before that, so that the pod's events show our message, not "signal: killed".
DEADLINES_MS = {
    "ADD": 60000,  # ours: an empty pool waits for one EC2 create and attach, 10-40 s (docs/pool.md, The pool)
    "DEL": 30000,  # ours: a DEL never calls EC2 (I12), and is spooled if the daemon takes too long
    "CHECK": 10000,  # ours: a CHECK reads one record and the kernel
    "GC": 60000,  # ours: a GC makes as many deletions as there are stale attachments
    "STATUS": 5000,  # ours: kubelet has the runtime ask every 5 s, and an answer that is too late makes the node NotReady
    "VERSION": 5000,  # ours: the daemon is not asked, so only a standard input that does not end can take this long
}
VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")  # MicroPython's dict has no order
NEEDS_SANDBOX = ("ADD", "DEL", "CHECK")
NEEDS_NETNS = ("ADD", "CHECK")
NEEDS_CONFIG = ("ADD", "CHECK", "GC")  # a GC without a configuration would mean that no attachment is valid

# container_id: [a-zA-Z0-9][a-zA-Z0-9_.-]* (CNI spec, parameters)
_ALNUM = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_ID_REST = _ALNUM + b"_.-"
# Linux refuses these characters (net/core/dev.c, dev_valid_name; its isspace counts latin-1's no-break space), except '%'. In place
# of a '%' __dev_alloc_name puts a number, so the interface would get another name than the runtime asked for.
_IFNAME_FORBIDDEN = b"/:% \t\n\v\f\r\xa0"


def read_verb(system: "System") -> str:
    """CNI_COMMAND. Raises: PluginError (4) if it is missing or unknown."""
    verb = _variable(system, "CNI_COMMAND")
    if not verb:
        raise _environment("CNI_COMMAND", "it is not set; vpc-cni is started by a container runtime, not by hand")
    for name in VERBS:
        if verb == name.encode():
            return name
    raise _environment("CNI_COMMAND", "unknown verb; known are " + ", ".join(VERBS))


def read_config(system: "System", *, deadline_ms: int) -> bytes:
    """Read standard input to its end. Raises: PluginError if it stalls or fails (5), or is larger than CONFIG_BYTES_MAX (7)."""
    parts = []  # type: list[bytes]
    size = 0
    while True:
        try:
            data = system.read(STDIN, READ_BYTES, deadline_ms - system.monotonic_ms())
        except OSError as exc:
            number = exc.errno or 0
            if number == errors.EAGAIN:
                continue  # the pipe is non-blocking, and another reader took its data
            cause = system.error_text(number)
            if number == errors.ETIMEDOUT:
                cause = "it did not end before the deadline"
            raise PluginError(errors.CODE_IO, "the network configuration could not be read from standard input", cause) from None
        if not data:
            return b"".join(parts)
        parts.append(data)
        size += len(data)
        if size > CONFIG_BYTES_MAX:
            cause = "more than " + str(CONFIG_BYTES_MAX) + " bytes on standard input"
            raise PluginError(errors.CODE_CONFIG, "the network configuration is too large", cause)


def encode(system: "System", verb: str, config: bytes, *, plugin_version: str) -> bytes:
    """Check the environment for this verb and build the ExecRequest. Raises: PluginError (4 or 7)."""
    container_id = ifname = netns = b""
    if verb in NEEDS_SANDBOX:
        container_id = _container_id(system, verb)
        ifname = _interface_name(system, verb)
        netns = _netns_path(system, verb)
    if verb in NEEDS_CONFIG and not config.strip():
        raise PluginError(errors.CODE_CONFIG, "the network configuration is empty", verb + " needs one on standard input")
    return envelope.encode_request(
        verb,
        container_id=container_id,
        netns=netns,
        ifname=ifname,
        args=_variable(system, "CNI_ARGS"),
        path=_variable(system, "CNI_PATH"),
        config=config,
        plugin_version=plugin_version,
    )


def check_spoolable(config: bytes) -> None:
    """Refuse to spool a DEL with a truncated configuration: after success the runtime does not repeat it. Raises: PluginError (7)."""
    config = config.strip()  # only the outer braces are checked here, because the daemon parses the rest
    if len(config) < 2 or config[:1] != b"{" or config[-1:] != b"}":
        cause = "ipamd is away, and only a DEL with a JSON object on standard input is kept for it"
        raise PluginError(errors.CODE_CONFIG, "the network configuration is not a JSON object", cause)


def _container_id(system: "System", verb: str) -> bytes:
    container_id = _required(system, verb, "CNI_CONTAINERID")
    if len(container_id) > CONTAINER_ID_BYTES_MAX:
        raise _environment("CNI_CONTAINERID", "it has more than " + str(CONTAINER_ID_BYTES_MAX) + " bytes")
    if container_id[0] not in _ALNUM:
        raise _environment("CNI_CONTAINERID", "it must begin with a letter or digit")
    if container_id.strip(_ID_REST):
        raise _environment("CNI_CONTAINERID", "only letters, digits, '_', '.' and '-' are allowed")
    return container_id


def _interface_name(system: "System", verb: str) -> bytes:
    ifname = _required(system, verb, "CNI_IFNAME")
    if len(ifname) > IFNAME_BYTES_MAX:
        raise _environment("CNI_IFNAME", "it has more than " + str(IFNAME_BYTES_MAX) + " bytes")
    if ifname in (b".", b".."):
        raise _environment("CNI_IFNAME", "'.' and '..' are no interface names")
    for byte in ifname:
        if byte in _IFNAME_FORBIDDEN:
            raise _environment("CNI_IFNAME", "'/', ':', '%' and white space are not allowed in interface names")
    return ifname


def _netns_path(system: "System", verb: str) -> bytes:
    """Path of the sandbox's network namespace; b"" if it is not set and the verb does not need it. Raises: PluginError (4)."""
    if verb in NEEDS_NETNS:
        netns = _required(system, verb, "CNI_NETNS")
    else:
        netns = _variable(system, "CNI_NETNS")
    if netns[:1] not in (b"", b"/"):
        raise _environment("CNI_NETNS", "it is not an absolute path")
    if len(netns) > NETNS_BYTES_MAX:
        raise _environment("CNI_NETNS", "it has more than " + str(NETNS_BYTES_MAX) + " bytes")
    return netns


def _variable(system: "System", name: str) -> bytes:
    """The variable's bytes, b"" if it is not set. Raises: PluginError (4) if it is not UTF-8."""
    value = system.env(name) or b""
    try:
        value.decode()
    except UnicodeError:
        raise _environment(name, "it is not UTF-8") from None
    return value


def _required(system: "System", verb: str, name: str) -> bytes:
    value = _variable(system, name)
    if not value:
        raise _environment(name, "it is not set, and " + verb + " needs it")
    return value


def _environment(name: str, cause: str) -> PluginError:
    return PluginError(errors.CODE_ENVIRONMENT, "environment variable " + name + " is invalid", cause)
