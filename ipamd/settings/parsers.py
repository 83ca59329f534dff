"""Parse the text of one setting. A parser returns the value, or raises ValueError with a sentence about the accepted values.

A parser raises no other error, except RecursionError for JSON, which `parsed` converts: `parsed` calls it only with bounded, printable
text. Values that would fail later, at the first EC2 call or in a kernel message, are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ipamd.model.pinned_address import PinnedRange
from ipamd.model.pod_pools import POOL_NAME

TEXT_MAX = 32 * 1024
"""The largest number of characters of one value. Ours: 1,000 CIDRs have about 20,000 characters, and JSON of this length cannot
exhaust the parser."""

CIDRS_MAX = 1000
"""The largest number of CIDRs in a list. Ours: each external service CIDR becomes a routing rule of the node, and the kernel tests
packets against the rules one by one, so their number must be bounded."""

NAMESPACES_MAX = 1000
"""The largest number of namespaces in a list. Ours: each ADD searches the list, so its length must be bounded."""

NAMESPACE_MAX = 63

NAMESPACE = rf"(?=.{{1,{NAMESPACE_MAX}}}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""Regular expression of the name of a namespace. Source: kubernetes apimachinery pkg/util/validation, IsDNS1123Label."""

PATH_BYTES_MAX = 4096
"""The largest number of bytes of a path. Source: Linux, include/uapi/linux/limits.h, PATH_MAX."""

SOCKET_BYTES_MAX = 107
"""The largest number of bytes of a Unix socket's path. Source: unix(7)."""

RUN_DIR_BYTES_MAX = SOCKET_BYTES_MAX - len("/ipamd.sock")

PORT_MAX = 65535

HOST_MAX = 253
"""The largest number of characters of a host's name. Ours: a longer name does not fit into DNS."""

LINK_NAMES = ("eth", "eno", "enp", "ens", "enx", "lo", "vlan", "docker", "br", "wg")
"""Prefixes of the names of other links on a node. A number follows the prefix, or a MAC address after `enx`.
Source: systemd.net-naming-scheme(7) for ENIs; amazon-vpc-cni-k8s for vlan."""

CONFLIST_SUFFIX = ".conflist"
"""The end of the name of a file that runtimes read as a list of plugins. A file with another end is read as one plugin, or not at all.
Source: github.com/containernetworking/cni, libcni/conf.go."""

LINE_BREAKS = str.maketrans("\n\r\t", "   ")

Parser = Callable[[str], Any]


def parsed(text: str, parse: Parser) -> Any:
    """Parse one value. The text must be bounded and printable, but may have line breaks, as JSON has. Pure.

    Raises: ValueError for every failure.
    """
    if len(text) > TEXT_MAX:
        raise ValueError(f"must have {TEXT_MAX} characters at most")
    if not text.translate(LINE_BREAKS).isprintable():
        raise ValueError("must be printable text, without control characters")
    try:
        return parse(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def single_line(text: str) -> str:
    """Accept text without line breaks and without spaces at its ends. Raises: ValueError."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable text in one line, without spaces at its ends")
    return text


def parse_bool(text: str) -> bool:
    """Accept the texts that Go's strconv.ParseBool accepts, because amazon-vpc-cni-k8s uses that. Raises: ValueError."""
    if text in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if text in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise ValueError("must be true or false")


def integer(lowest: int, highest: int) -> Callable[[str], int]:
    """Make a parser of whole numbers from `lowest` to `highest`. The parser raises ValueError."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,20}|0[xX][0-9a-fA-F]{1,16}", text, re.ASCII):
            raise ValueError(f"must be a whole number, {lowest} to {highest}")
        base = 10
        if text.lower().startswith("0x"):
            base = 16
        value = int(text, base)
        if not lowest <= value <= highest:
            raise ValueError(f"must be {lowest} to {highest}")
        return value

    return parse


MARKS_OF_OTHERS = (
    (0x2000, "the plugin portmap's"),
    (0x4000, "kube-proxy's, for masquerading"),
    (0x8000, "kubelet's and kube-proxy's, for dropping"),
    (0x0F00, "Cilium's"),
    (0xFFFF0000, "Calico's"),
)
"""Bits of the packet mark that other software sets or clears, each with the name of the software.
Sources: github.com/containernetworking/plugins, plugins/meta/portmap (DefaultMarkBit); kubernetes pkg/proxy/iptables (masqueradeBit),
pkg/kubelet (KUBE-MARK-DROP); cilium bpf/lib/common.h (MARK_MAGIC_HOST_MASK); projectcalico/calico felix/config (IptablesMarkMask)."""


def parse_mark(text: str) -> int:
    """Accept bits of the packet mark that no other software uses. Raises: ValueError with the name of the software."""
    mark = integer(1, 0xFFFFFFFF)(text)
    for bits, whose in MARKS_OF_OTHERS:
        if mark & bits:
            raise ValueError(f"has bits of {bits:#x}, which are {whose}: choose from 0x10ff, as 0x80")
    return mark


def choice(*allowed: str) -> Callable[[str], str]:
    """Make a parser that accepts only these words, in upper or lower case, and returns lower case. The parser raises ValueError."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.lower()

    return parse


def parse_veth_prefix(text: str) -> str:
    """Accept a beginning for the names of host veths with which no other link's name begins. Raises: ValueError.

    Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, validateEnvVars.
    """
    if not re.fullmatch(r"[a-zA-Z0-9]{1,4}", text) or text in {"eth", "lo", "vlan"}:
        raise ValueError("must be 1 to 4 ASCII letters or digits, and not eth, lo or vlan")
    for name in LINK_NAMES:
        digit = "[0-9]"
        if name == "enx":
            digit = "[0-9a-f]"
        if name.startswith(text) or re.match(name + digit, text):
            raise ValueError(
                f"other links have names with this beginning ({name}...), and rules for sandboxes would apply to them"
            )
    return text


def parse_cidrs(text: str) -> tuple[IPv4Network, ...]:
    """Accept a comma-separated list of IPv4 CIDRs; their host bits are dropped. Raises: ValueError, which names a wrong entry."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if ":" in part:
            raise ValueError(f"{part} is of IPv6, and it takes IPv4 CIDRs only")
    cidrs = tuple(IPv4Network(part, strict=False) for part in parts)
    if len(cidrs) > CIDRS_MAX:
        raise ValueError(f"must be {CIDRS_MAX} CIDRs at most")
    return cidrs


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Accept a comma-separated list of namespaces. Raises: ValueError, which names a wrong entry."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not re.fullmatch(NAMESPACE, name):
            raise ValueError(f"{name} is no name of a namespace: lower-case letters, digits and hyphens, {NAMESPACE_MAX} at most")
    if len(names) > NAMESPACES_MAX:
        raise ValueError(f"must be {NAMESPACES_MAX} namespaces at most")
    return names


def parse_pool_choices(text: str) -> tuple[str, ...]:
    """Accept a comma-separated list of NAMESPACE=POOL. Raises: ValueError, which names a wrong entry."""
    choices = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for pair in choices:
        namespace, _, pool = pair.partition("=")
        if not (re.fullmatch(NAMESPACE, namespace) and POOL_NAME.fullmatch(pool)):
            raise ValueError(f"{pair} is no NAMESPACE=POOL (web=cards)")
    if len(choices) > NAMESPACES_MAX:
        raise ValueError(f"must be {NAMESPACES_MAX} pairs at most")
    return choices


def parse_pool_by_namespace(text: str) -> tuple[str, ...]:
    """Accept a comma-separated list of NAMESPACE=POOL that names each namespace once.

    Raises: ValueError, which names a wrong entry, or a namespace with two pools.
    """
    choices = parse_pool_choices(text)
    namespaces = [choice.partition("=")[0] for choice in choices]
    twice = next((namespace for namespace in namespaces if namespaces.count(namespace) > 1), "")
    if twice:
        raise ValueError(f"{twice} has two pools")
    return choices


def parse_pod_subjects(text: str) -> tuple[str | IPv4Network, ...]:
    """Accept a comma-separated list of namespaces and IPv4 CIDRs. Raises: ValueError, which names a wrong entry."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    cidrs = parse_cidrs(",".join(part for part in parts if "/" in part))
    return (*parse_namespaces(",".join(part for part in parts if "/" not in part)), *cidrs)


def parse_pinned_ranges(text: str) -> tuple[PinnedRange, ...]:
    """Accept a comma-separated list whose entries are a namespace or namespace=CIDR. Raises: ValueError, which names a wrong entry."""
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        namespace, has_cidr, cidr = part.partition("=")
        (name,) = parse_namespaces(namespace) or ("",)
        cidrs = parse_cidrs(cidr)
        if not name or (has_cidr and len(cidrs) != 1):
            raise ValueError(f"{part} is neither a namespace nor namespace=CIDR")
        ranges.append(PinnedRange(name, cidrs[0] if cidrs else None))
    if len(ranges) > CIDRS_MAX:
        raise ValueError(f"must have {CIDRS_MAX} entries at most")
    return tuple(dict.fromkeys(ranges))


def parse_service_cidrs(text: str) -> tuple[IPv4Network, ...]:
    """Accept a list of IPv4 CIDRs without 0.0.0.0/0, because with a routing rule for 0.0.0.0/0 no sandbox would use its own ENI.

    Raises: ValueError.
    """
    cidrs = parse_cidrs(text)
    if any(not cidr.prefixlen for cidr in cidrs):
        raise ValueError("0.0.0.0/0 would send all traffic of every sandbox through the primary ENI")
    return cidrs


def parse_path(text: str) -> Path:
    """Accept an absolute path. Raises: ValueError."""
    if not single_line(text).startswith("/") or len(text.encode()) > PATH_BYTES_MAX:
        raise ValueError(f"must be an absolute path of {PATH_BYTES_MAX} bytes at most")
    return Path(text)


def parse_path_text(text: str) -> str:
    """Accept an absolute path and return it as text, so that the setting can also have the value `off` (`or_off`).

    Raises: ValueError.
    """
    return str(parse_path(text))


def parse_file(text: str) -> Path:
    """Accept an absolute path that ends in the name of a file, so that a file with another name can be made beside it.

    Raises: ValueError.
    """
    path = parse_path(text)
    if path.name in {"", ".."}:
        raise ValueError("must be the absolute path of a file")
    return path


def parse_file_text(text: str) -> str:
    """Accept the absolute path of a file and return it as text, so that the setting can also be empty (by default) or `off`.

    Raises: ValueError.
    """
    return str(parse_file(text))


def parse_conflist(text: str) -> Path:
    """Accept the path of a file that a runtime reads as a list of plugins. Raises: ValueError."""
    path = parse_file(text)
    if path.suffix != CONFLIST_SUFFIX:
        raise ValueError(f"must end in {CONFLIST_SUFFIX}, because a runtime reads no other file as a list of plugins")
    return path


def or_off(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Make a parser that accepts `off`, and every text that `parse` accepts."""

    def parse_or_off(text: str) -> str:
        if text == "off":
            return text
        return parse(text)

    return parse_or_off


def parse_run_dir(text: str) -> Path:
    """Accept a directory whose path leaves room for the name of a Unix socket. Raises: ValueError."""
    path = parse_path(text)
    if len(text.encode()) > RUN_DIR_BYTES_MAX or path == Path("/"):
        raise ValueError(f"must be a directory below / whose path has {RUN_DIR_BYTES_MAX} bytes at most: a socket is made in it")
    return path


def parse_socket(text: str) -> str:
    """Accept the absolute path of a Unix socket. Raises: ValueError."""
    path = parse_file_text(text)
    if len(path.encode()) > SOCKET_BYTES_MAX:
        raise ValueError(f"must be the absolute path of a Unix socket, {SOCKET_BYTES_MAX} bytes at most")
    return path


def parse_cri_socket(text: str) -> str:
    """Accept the path of a Unix socket, with or without `unix://`, or `off`. Raises: ValueError."""
    if text != "off":
        path = single_line(text).removeprefix("unix://")
        if not path.startswith("/") or len(path.encode()) > SOCKET_BYTES_MAX:
            raise ValueError(f"must be the absolute path of a Unix socket, {SOCKET_BYTES_MAX} bytes at most, or off")
    return text


def parse_listen_address(text: str) -> str:
    """Accept `off`, or `host:port` with a host that is an IP address (IPv6 in brackets), `localhost` or empty. Raises: ValueError."""
    if text == "off":
        return text
    host, colon, port = single_line(text).rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 1 <= int(port) <= PORT_MAX or not colon:
        raise ValueError(f"must be host:port with a port from 1 to {PORT_MAX}, or off")
    if not _is_listen_host(host):
        raise ValueError("must be host:port whose host is empty or an IP address (IPv6 in brackets), or off")
    return text


def parse_url(text: str) -> str:
    """Accept an http or https URL of a host, as botocore accepts it for an endpoint. Raises: ValueError."""
    wrong = "must be a URL as https://host:port, http or https, without a query"
    try:
        url = urlsplit(single_line(text))
        port = url.port
    except ValueError as error:
        raise ValueError(wrong) from error
    is_bare = not url.query and not url.fragment and url.username is None
    if not text.isascii() or " " in text or port == 0 or not is_bare or not _is_http_host(url):
        raise ValueError(wrong)
    return text


def parse_http_url(text: str) -> str:
    """Accept a URL that `parse_url` accepts, but not https, because instance metadata is served without TLS. Raises: ValueError."""
    if urlsplit(parse_url(text)).scheme != "http":
        raise ValueError("must be a URL as http://host:port: instance metadata is not served by https")
    return text


def parse_region(text: str) -> str:
    """Accept the name of a region if botocore would: it must be a label of a host name. Source: botocore/utils.py,
    validate_region_name.

    Raises: ValueError.
    """
    if not re.fullmatch(r"(?!-)[a-zA-Z\d-]{1,63}(?<!-)", text, re.ASCII):
        raise ValueError("must be the name of a region, as us-west-2")
    return text


def _is_http_host(url: SplitResult) -> bool:
    return url.scheme in {"http", "https"} and _is_host(url.hostname or "")


def _is_listen_host(host: str) -> bool:
    """Whether a host to listen on is empty, localhost, an IPv4 address, or an IPv6 address in brackets."""
    if host in {"", "localhost"}:
        return True
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        return ip_address(host[1:-1] if is_bracketed else host).version == (6 if is_bracketed else 4)
    except ValueError:
        return False


def _is_host(text: str) -> bool:
    """Whether botocore accepts a text as a host, which is a name or an address. Source: botocore/utils.py, is_valid_uri."""
    labels = text.removesuffix(".").split(".")
    if len(text) <= HOST_MAX and all(re.fullmatch(r"(?!-)[a-zA-Z\d-]{1,63}(?<!-)", label, re.ASCII) for label in labels):
        return True
    try:
        return ip_address(text).version == 6 and "%" not in text
    except ValueError:
        return False
