"""Say what is in an image: `image_contents.py ARCHIVE LIST BASE` writes its digest, sizes, packages and every file with its hash.

`image_contents.py --unpack DIRECTORY ARCHIVE` lays its layers into a directory instead. ARCHIVE is an OCI archive. Two builds are the
same exactly if their lists are. Runs on the standard library alone. Source of the format: the OCI image specification.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


class Archive:
    """An image in an OCI archive. Raises: KeyError, ValueError if the file is no OCI archive with one image."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            streams = {member.name.removeprefix("./"): tar.extractfile(member) for member in tar if member.isfile()}
            self._blobs = {name: stream.read() for name, stream in streams.items() if stream is not None}
        (entry,) = json.loads(self._blobs["index.json"])["manifests"]
        self.digest: str = entry["digest"]
        self.manifest: dict[str, Any] = json.loads(self._blob(self.digest))
        self.config: dict[str, Any] = json.loads(self._blob(self.manifest["config"]["digest"]))

    @property
    def compressed_bytes(self) -> int:
        """The size of all layers, compressed as a registry stores them and a node pulls them."""
        return sum(layer["size"] for layer in self.manifest["layers"])

    def layers(self) -> Iterator[tarfile.TarFile]:
        """Yield each layer, the lowest first."""
        for layer in self.manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(self._blob(layer["digest"]))) as tar:
                yield tar

    def _blob(self, digest: str) -> bytes:
        blob = self._blobs["blobs/" + digest.replace(":", "/")]
        if f"sha256:{hashlib.sha256(blob).hexdigest()}" != digest:
            raise ValueError(f"{digest} is damaged")
        return blob


def lines_of(archive: Archive) -> dict[str, str]:
    """Return each path of the merged layers -> mode, owner, size, time and hash (or the target of a link)."""
    lines: dict[str, str] = {}
    for layer in archive.layers():
        for member in layer:
            path = "/" + member.name.removeprefix("./").rstrip("/")
            folder, _, name = path.rpartition("/")
            if name == OPAQUE:
                lines = {known: line for known, line in lines.items() if not known.startswith(folder + "/")}
            elif name.startswith(WHITEOUT):
                gone = f"{folder}/{name.removeprefix(WHITEOUT)}"
                lines = {known: line for known, line in lines.items() if known != gone and not known.startswith(gone + "/")}
            else:
                lines[path] = _line(layer, member)
    return lines


def _line(layer: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    owner = f"{member.mode:05o} {member.uid}:{member.gid}"
    if member.isfile():
        stream = layer.extractfile(member)
        content = stream.read() if stream else b""
        return f"{owner} {len(content)} {int(member.mtime)} sha256:{hashlib.sha256(content).hexdigest()}"
    if member.issym() or member.islnk():
        return f"{owner} link {'to' if member.issym() else 'hard'} {member.linkname}"
    return f"{owner} directory" if member.isdir() else f"{owner} special {member.type!r}"


def unpack(archive: Archive, directory: Path) -> None:
    """Lay the layers over each other in a directory. Device files are left out."""
    for layer in archive.layers():
        # Python before 3.11.4 has no filters, and trusts each archive fully
        layer.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        for member in layer:
            target = directory / member.name
            if target.name.startswith(WHITEOUT):
                raise ValueError(f"{member.name}: an image of ours deletes nothing of its base")
            if member.ischr() or member.isblk():
                continue
            if target.is_symlink() and member.isdir():
                continue  # keep links such as /bin, which points to /usr/bin: a layer may have a directory of this name
            layer.extract(member, directory, numeric_owner=True)


def page(archive: Archive, base: str) -> str:
    """Return the text of the list."""
    lines = lines_of(archive)
    sizes = [layer["size"] for layer in archive.manifest["layers"]]
    head = [
        f"digest      {archive.digest}",
        f"base        {base}",
        f"platform    {archive.config['os']}/{archive.config['architecture']}",
        f"compressed  {archive.compressed_bytes} bytes in {len(sizes)} layers: {', '.join(map(str, sizes))}",
        f"files       {len(lines)}",
        "",
    ]
    return "\n".join(head + [f"{path} {line}" for path, line in sorted(lines.items())]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the list, or unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--unpack", type=Path, metavar="DIRECTORY")
    parser.add_argument("archive", type=Path)
    parser.add_argument("list", type=Path, nargs="?")
    parser.add_argument("base", nargs="?", default="")
    options = parser.parse_args(argv)
    archive = Archive(options.archive)
    if options.unpack is not None:
        unpack(archive, options.unpack)
    elif options.list is not None:
        options.list.write_text(page(archive, options.base))
        print(f"image: {options.archive}, {archive.digest}, {archive.compressed_bytes / 1e6:.1f} MB compressed")
    else:
        parser.error("say where the list goes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
