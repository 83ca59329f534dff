"""Make every part within its time and size, take the secrets out, and put them into one archive with a list of what is in it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO

from ipamd.ipamctl.bundle.parts import Part
from ipamd.model.redaction import without_secrets
from ipamd.model.words import printable

PART_S = 15.0
"""For one part. Ours: an audit of a node with 660 sandboxes takes a second or two."""

TOTAL_S = 60.0
PART_BYTES = 8 << 20
TOTAL_BYTES = 48 << 20
"""Before compression, which makes a tenth of it."""

README = """\
vpc-ipamd: state of one node, for support. MANIFEST.json lists the files, and what failed.

In it: addresses, names of pods and namespaces, sandbox IDs, ENI, subnet and instance IDs, MAC addresses, settings, the daemon's log,
routes, rules, links, nftables and metrics of this node.
Not in it: environments, tokens, pods' files or traffic. Text that looks like a credential (keys, tokens, authorization headers,
passwords, credentials in URLs, long words of letters and digits) was replaced by [redacted]; a secret without a known form may remain,
so look before you send it on.
"""


@dataclass(frozen=True, slots=True)
class Collected:
    """One file of the archive as the list tells it; `problem` is "" if it is whole."""

    name: str
    what: str
    bytes: int
    ms: float
    problem: str


def collect(
    parts: Sequence[Part], out: IO[bytes], *, part_s: float = PART_S, total_s: float = TOTAL_S, at_s: float
) -> list[Collected]:
    """Write the archive (tar, gzip) to `out`.

    Args:
        at_s: time of the files, seconds since the epoch.
    Returns: what became of each part, in order. Raises: OSError if the archive cannot be written.
    """
    deadline, left_bytes = time.monotonic() + total_s, TOTAL_BYTES
    collected: list[Collected] = []
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=at_s) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        _put(archive, "README.txt", README.encode(), at_s)
        for part in parts:
            began = time.monotonic()
            left_s = min(part_s, deadline - began)
            most = min(PART_BYTES, left_bytes)
            data, problem = _made(part, most, left_s) if left_s > 0 else (b"", "left out: the time is up")
            left_bytes -= len(data)
            if data:
                _put(archive, part.name, data, at_s)
            ms = round((time.monotonic() - began) * 1000, 1)
            collected.append(Collected(part.name, part.what, len(data), ms, problem))
        _put(archive, "MANIFEST.json", (json.dumps([asdict(one) for one in collected], indent=2) + "\n").encode(), at_s)
    return collected


def _made(part: Part, most_bytes: int, timeout_s: float) -> tuple[bytes, str]:
    """Make one part without its secrets in a thread of its own, left behind if it hangs. Returns: its text, and its problem."""
    done: list[tuple[bytes, str]] = []

    def make() -> None:
        try:
            done.append(_clean(part.make(), most_bytes))
        except Exception as error:  # noqa: BLE001  # no part may stop the others
            done.append((b"", without_secrets(printable(f"{type(error).__name__}: {error}"))))

    thread = threading.Thread(target=make, name=part.name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done[0] if done else (b"", f"left out: it took more than {timeout_s:.0f} s")


def _clean(text: str, most_bytes: int) -> tuple[bytes, str]:
    """Cut a part, then take its secrets out: what is cut off costs no time."""
    data = text.encode("utf-8", "replace")
    problem = f"cut: it has {len(data)} bytes, {most_bytes} are kept" if len(data) > most_bytes else ""
    clean = without_secrets(data[:most_bytes].decode("utf-8", "ignore")).encode()
    return clean[:most_bytes], problem


def _put(archive: tarfile.TarFile, name: str, data: bytes, at_s: float) -> None:
    entry = tarfile.TarInfo(f"vpc-ipamd-bundle/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(at_s), 0o600
    archive.addfile(entry, io.BytesIO(data))
