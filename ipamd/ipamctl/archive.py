"""Make the support archive: its parts, which are bounded in time and size and free of secrets, and a manifest of all parts."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

from ipamd.ipamctl.archive_filter import FILES, ArchiveFilter, FieldCounts
from ipamd.ipamctl.archive_parts import Part
from ipamd.model.redaction import without_secrets
from ipamd.model.words import printable

PART_S = 15.0
"""Longest time for one part. Ours: ample, because an audit of a node with 660 sandboxes takes a second or two."""

TOTAL_S = 60.0
"""Longest time for all parts. Ours: four parts may use up PART_S, so a node on which several sources hang still gives an archive, and
somebody waits for it at a terminal."""

PART_BYTES = 8 << 20
"""The largest number of bytes of one part, before compression. Ours: six full parts fill TOTAL_BYTES, so no single one keeps out the
others."""

TOTAL_BYTES = 48 << 20
"""The largest number of bytes of all parts together, before compression. Ours: compression reduces them to a tenth, so the archive is
small enough to send."""

README = """\
vpc-ipamd: state of one node, for support. MANIFEST.json lists the files, and what failed.

In it: addresses, names of pods and namespaces, sandbox IDs, ENI, subnet and instance IDs, MAC addresses, settings, the daemon's log,
routes, rules, links, nftables and metrics of this node.
Not in it: environments, tokens, pods' files or traffic. Only known fields are kept, and of their text only words, names and shapes
that are known to be harmless. [12] stands for 12 characters that were left out, [redacted] for the value of something that is called
a secret; MANIFEST.json counts what was kept and left out of each file. Nevertheless, look through the files before you send them on.
"""


class Collected(NamedTuple):
    """The entry of one file in the manifest.

    `bytes`: size of the file; 0 if it is not in the archive.
    `duration_s`: time that it took to make the file.
    `problem`: why the file is missing or cut; "" if it is complete.
    `kept_count`, `left_out_count`: fields and words of the file that the filter kept and left out.
    """

    name: str
    description: str
    bytes: int
    duration_s: float
    problem: str
    kept_count: int = 0
    left_out_count: int = 0


def collect(
    parts: Sequence[Part], out: IO[bytes], *, part_s: float = PART_S, total_s: float = TOTAL_S, at_s: float
) -> list[Collected]:
    """Write the archive (tar, gzip) to `out`.

    Args:
        part_s: the longest time for one part, in seconds.
        total_s: the longest time for all parts, in seconds; parts that would begin later are left out.
        at_s: modification time of the files in the archive, in seconds since the epoch.
    Returns: the outcome of each part, in order. Raises: OSError if the archive cannot be written.
    """
    deadline = time.monotonic() + total_s
    left_bytes = TOTAL_BYTES
    collected: list[Collected] = []
    archive_filter = ArchiveFilter()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=at_s) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        _add(archive, "README.txt", README.encode(), at_s)
        for part in parts:
            began = time.monotonic()
            left_s = min(part_s, deadline - began)
            if left_s > 0:
                content = _make_part(part, min(PART_BYTES, left_bytes), left_s, archive_filter)
            else:
                content = _PartContent(b"", "left out: the time is up")
            data, problem, counts = content
            left_bytes -= len(data)
            if data:
                _add(archive, part.name, data, at_s)
            duration_s = round(time.monotonic() - began, 4)
            file = Collected(
                part.name, part.description, len(data), duration_s, problem, counts.kept_count, counts.left_out_count
            )
            collected.append(file)
        manifest = json.dumps([file._asdict() for file in collected], indent=2) + "\n"
        _add(archive, "MANIFEST.json", manifest.encode(), at_s)
    return collected


class _PartContent(NamedTuple):
    """The content of one part after filtering."""

    data: bytes
    problem: str
    counts: FieldCounts = FieldCounts()


def _make_part(part: Part, most_bytes: int, timeout_s: float, archive_filter: ArchiveFilter) -> _PartContent:
    """Make one part without its secrets, in a thread of its own. After `timeout_s` the thread is abandoned and the part left out."""
    results: list[_PartContent] = []

    def make() -> None:
        try:
            data = part.make().encode("utf-8", "replace")
            problem = ""
            if len(data) > most_bytes:
                problem = f"cut: it has {len(data)} bytes, {most_bytes} are kept"
            # Cut before the filter, whose time grows with the size.
            clean, counts = _clean(part.name, data[:most_bytes].decode("utf-8", "ignore"), archive_filter)
            results.append(_PartContent(clean.encode()[:most_bytes], problem, counts))
        except Exception as error:  # noqa: BLE001  # no part may stop the others
            problem = without_secrets(printable(f"{type(error).__name__}: {error}"))
            if part.name in FILES:
                problem = archive_filter.sentence(problem)
            results.append(_PartContent(b"", problem))

    thread = threading.Thread(target=make, name=part.name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not results:
        return _PartContent(b"", f"left out: it took more than {timeout_s:.0f} s")
    return results[0]


def _clean(name: str, text: str, archive_filter: ArchiveFilter) -> tuple[str, FieldCounts]:
    """Filter a part. A file that is not listed in FILES only loses its secrets."""
    if name in FILES:
        return archive_filter.keep(name, text)
    return without_secrets(text), FieldCounts()


def _add(archive: tarfile.TarFile, name: str, data: bytes, at_s: float) -> None:
    file = tarfile.TarInfo(f"vpc-ipamd-bundle/{name}")
    file.size, file.mtime, file.mode = len(data), int(at_s), 0o600
    archive.addfile(file, io.BytesIO(data))
