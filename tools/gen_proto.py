"""Generate `ipamd/pb` from `proto/`, or check (`--check`) that what is committed equals what would be generated.

The generator writes imports for a flat tree; they are rewritten to the package `ipamd.pb`. Runs without network.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "ipamd" / "pb"
SOURCES = (
    *("vpc_ipamd/v1/cni.proto", "vpc_ipamd/v1/introspection.proto", "runtime/v1/cri.proto"),
    *("aws_node/cni_backend.proto", "aws_node/network_policy.proto", "kubelet/v1alpha1/pods.proto"),
)


WITHOUT_STUBS = frozenset({"introspection_pb2_grpc.py"})
"""Generated files that are left out, because server and client of this service find its methods in the descriptor."""


def generate(into: Path) -> None:
    """Write one `<name>_pb2.py`, `.pyi` and `_pb2_grpc.py` per source, flat, into an existing directory.

    Raises: SystemExit if protoc refuses a source.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for source in SOURCES:
            code = protoc.main([
                "protoc", f"-I{ROOT / 'proto'}", f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={scratch}", f"--pyi_out={scratch}", f"--grpc_python_out={scratch}", source,
            ])  # fmt: skip
            if code != 0:
                raise SystemExit(f"protoc refused {source} (exit {code})")
        for file in sorted(Path(scratch).rglob("*_pb2*")):
            if file.name in WITHOUT_STUBS:
                continue
            text = re.sub(r"^from [\w.]+ import (\w+_pb2)", r"from ipamd.pb import \1", file.read_text(), flags=re.M)
            (into / file.name).write_text(text)


def drift() -> list[str]:
    """Name the files of `ipamd/pb` that differ from a fresh generation."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
    committed = {path.name: path.read_bytes() for path in TARGET.glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    """Generate, or with `--check` report drift; exit status 1 on drift."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        stale = drift()
        if stale:
            print(f"ipamd/pb is stale ({', '.join(stale)}): run `make proto`", file=sys.stderr)
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    generate(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
