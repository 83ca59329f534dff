"""What the CNI specification and the plugin's documentation promise for an input, and whether an output keeps it.

Written from them, not from the plugin: https://github.com/containernetworking/cni/blob/main/SPEC.md (parameters, error codes), and
docs/troubleshooting.md for the codes that are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuzz.json_text import strict
from fuzz.target import Violation

DEADLINE_MS = {"ADD": 60_000, "DEL": 30_000, "CHECK": 10_000, "GC": 60_000, "STATUS": 5_000, "VERSION": 5_000}
SANDBOX_VERBS, NETNS_VERBS, CONFIG_VERBS = ("ADD", "DEL", "CHECK"), ("ADD", "CHECK"), ("ADD", "CHECK", "GC")
CONFIG_BYTES_MAX = 7 << 18
DEFECT = "vpc-cni failed"
"""What the plugin says instead of a traceback; code 190."""

VERSIONS = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]
_CONTAINER_ID = re.compile(rb"[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,199}")
_IFNAME_BAD = re.compile(rb"[/: \t\n\v\f\r\xa0]")


@dataclass(frozen=True)
class Expected:
    """`must`: one of these codes, if there are any. `may`: codes that are right too, beside success."""

    verb: str
    must: frozenset[int]
    may: frozenset[int]


def expected(env: Mapping[str, bytes], stdin: bytes, *, stdin_end: object = "eof") -> Expected:
    """Say which errors an input deserves, whatever the daemon does."""
    command = env.get("CNI_COMMAND", b"")
    verb = command.decode("utf-8", "replace")
    if verb not in DEADLINE_MS:
        return Expected("STATUS", frozenset({4}), frozenset())
    must, may = set(), set()
    if stdin_end != "eof":
        must.add(5)
    if len(stdin) > CONFIG_BYTES_MAX:
        must.add(7)
    if verb != "VERSION":
        if verb in CONFIG_VERBS and not stdin.strip():
            must.add(7)
        if _is_environment_wrong(env, verb):
            must.add(4)
    if verb in SANDBOX_VERBS and b"%" in env.get("CNI_IFNAME", b""):
        may.add(4)  # a pattern to Linux, not a name
        if must:
            must.add(4)  # of several reasons any one is told
    return Expected(verb, frozenset(must), frozenset(may))


def _is_environment_wrong(env: Mapping[str, bytes], verb: str) -> bool:
    container, ifname, netns = (env.get(name, b"") for name in ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"))
    read = ["CNI_ARGS", "CNI_PATH", "VPC_IPAMD_RUN_DIR"]
    if verb in SANDBOX_VERBS:
        read += ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"]
        if not _CONTAINER_ID.fullmatch(container):
            return True
        if not 0 < len(ifname) <= 15 or ifname in (b".", b"..") or _IFNAME_BAD.search(ifname):
            return True
        if (netns or verb in NETNS_VERBS) and (netns[:1] != b"/" or len(netns) > 4096):
            return True
    run_dir = env.get("VPC_IPAMD_RUN_DIR", b"")
    if run_dir and (run_dir[:1] != b"/" or len(run_dir) > 107 - len("/ipamd.sock")):
        return True
    return any(not _is_utf8(env.get(name, b"")) for name in read)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def judge_exit(status: int, stdout: bytes, stderr: bytes = b"") -> dict[str, Any] | None:
    """Judge an output where the peer chose the result, which is printed as it came: only what the plugin says itself.

    Returns: the error document, None for a result. Raises: Violation.
    """
    if stderr:
        raise Violation("traceback", f"standard error: {stderr[-600:]!r}")
    return judge_document(status, stdout) if status else None


def judge_document(status: int, stdout: bytes, stderr: bytes = b"") -> dict[str, Any] | None:
    """Judge what every output must be: nothing, or one JSON document; an error has its four keys. Returns: it, None for nothing.

    Raises: Violation.
    """
    if stderr:
        raise Violation("traceback", f"standard error: {stderr[-600:]!r}")
    if status not in (0, 1):
        raise Violation("exit status", f"{status}, standard output {stdout[:200]!r}")
    if not stdout and status == 0:
        return None
    try:
        document = strict(stdout)
    except (ValueError, RecursionError) as error:
        raise Violation("invalid document", f"{error} in {stdout[:300]!r}") from error
    if not isinstance(document, dict):
        raise Violation("invalid document", f"no object: {stdout[:300]!r}")
    if status == 1 and (list(document) != ["cniVersion", "code", "msg", "details"] or not _is_error(document)):
        raise Violation("invalid document", f"no CNI error: {stdout[:300]!r}")
    if status == 1 and document["msg"] == DEFECT:
        raise Violation("traceback", f"{stdout[:400]!r}")
    return document


def _is_error(document: Mapping[str, Any]) -> bool:
    code, texts = document["code"], [document[name] for name in ("cniVersion", "msg", "details")]
    return isinstance(code, int) and 0 < code < 1 << 32 and all(isinstance(text, str) for text in texts) and bool(texts[0])


def judge_code(wanted: Expected, status: int, document: Mapping[str, Any] | None, *, allowed: frozenset[int]) -> None:
    """Judge the code: one that the input deserves, or one of `allowed` (0: success) if it deserves none. Raises: Violation."""
    code = int(document["code"]) if status and document else 0
    if wanted.must and code not in wanted.must:
        raise Violation("wrong code", f"{wanted.verb} gave {code}, expected one of {sorted(wanted.must)}")
    if not wanted.must and code not in wanted.may | allowed:
        raise Violation("wrong code", f"{wanted.verb} gave {code} ({document!r:.300}), expected one of {sorted(allowed)}")
    if wanted.verb == "VERSION" and code == 0 and (document is None or document.get("supportedVersions") != VERSIONS):
        raise Violation("wrong document", f"VERSION gave {document!r:.300}")
