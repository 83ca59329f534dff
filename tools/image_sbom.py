"""Write the bill of materials of an image in CycloneDX: `image_sbom.py ROOTFS OUTPUT`, by cyclonedx-bom and dpkg's own list.

ROOTFS is the unpacked image (`image_contents.py --unpack`). cyclonedx-bom reads the metadata of the Python packages in it; the Debian
packages, which cyclonedx-bom does not read, are added with package URLs as purl-spec defines them for Debian.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

VENV = "opt/ipamd"


def python_bom(root: Path) -> dict[str, Any]:
    """Return the bill of materials that cyclonedx-bom writes for the image's virtual environment. Raises: CalledProcessError."""
    site = next((root / VENV / "lib").glob("python3.*/site-packages"))
    tool = Path(sys.executable).with_name("cyclonedx-py")
    with tempfile.TemporaryDirectory() as folder:
        # cyclonedx-bom runs a Python interpreter to learn its `sys.path`. The image's interpreter does not run outside of the image,
        # so a script takes its place and prints the path.
        interpreter = Path(folder, "python")
        interpreter.write_text(f"#!/bin/sh\ncat <<'PATH'\n{json.dumps([str(site)])}\nPATH\n")
        interpreter.chmod(0o755)
        command = [str(tool), "environment", "--output-reproducible", "--of", "JSON", "--sv", "1.6", str(interpreter)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    bom: dict[str, Any] = json.loads(done.stdout)
    return bom


def debian_components(root: Path) -> list[dict[str, Any]]:
    """Return one component for each package that is installed according to dpkg's list."""
    status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    components = []
    for block in filter(str.strip, status.split("\n\n")):
        package = HeaderParser().parsestr(block)
        if package["Status"] != "install ok installed":
            continue
        name, version, arch = package["Package"], package["Version"], package["Architecture"]
        purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={arch}&distro=bookworm"
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return sorted(components, key=lambda component: str(component["name"]))


def main(argv: list[str]) -> int:
    """Write the bill of materials."""
    root, output = map(Path, argv)
    bom = python_bom(root)
    bom["components"] = bom.get("components", []) + debian_components(root)
    output.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")
    print(f"image: {output}, {len(bom['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
