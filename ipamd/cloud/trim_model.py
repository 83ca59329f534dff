"""Write the parts of botocore's data that we use: `python -m ipamd.cloud.trim_model [directory]`.

It copies EC2 operations and the shapes that they refer to, two STS operations (botocore's credential chain uses them to assume a
service account's role), the endpoint rules of EC2 and STS, and the global files that botocore reads to make a client. It drops
documentation and enum lists, which neither serialiser, validator nor parser reads. The daemon and `vpc-ipamd-inventory` have a
directory each, so that the daemon's data do not grow by the operations of the inventory. If the command names a directory, only the
daemon's data are written, into that directory.
`make setup` and the image build run it; the result is not committed. Rejected: a hand-written EC2 client, because signing, credentials
and endpoints are better taken from botocore.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ipamd.cloud.inventory_client import INVENTORY_DATA_DIR, INVENTORY_OPERATIONS
from ipamd.cloud.operations import OPERATIONS
from ipamd.cloud.trimmed_model import DATA_DIR, MANIFEST

STS_OPERATIONS = ("AssumeRole", "AssumeRoleWithWebIdentity")

KEPT: Mapping[str, tuple[str, ...]] = {"ec2": tuple(OPERATIONS), "sts": STS_OPERATIONS}
"""AWS service -> the operations that the daemon calls. Only these are kept in its model."""

KEPT_FOR_INVENTORY: Mapping[str, tuple[str, ...]] = {"ec2": tuple(INVENTORY_OPERATIONS), "sts": STS_OPERATIONS}
"""Operations of `vpc-ipamd-inventory`."""

GLOBAL_FILES = ("partitions", "sdk-default-configuration", "_retry")
"""Copied unchanged (18 KB): botocore reads them to make a client."""

SERVICE_FILES = ("endpoint-rule-set-1",)

_REFERENCES = ("input", "output", "member", "key", "value")

_UNREAD = ("documentation", "documentationUrl", "enum", "examples")


def write(target: Path = DATA_DIR, kept: Mapping[str, tuple[str, ...]] = KEPT) -> int:
    """Replace `target` with trimmed data of the installed botocore. `kept`: service -> its operations. Returns: bytes written."""
    import botocore
    from botocore.loaders import Loader

    loader = Loader(include_default_search_paths=False, extra_search_paths=[Loader.BUILTIN_DATA_PATH])
    shutil.rmtree(target, ignore_errors=True)
    for service, operations in kept.items():
        version = loader.determine_latest_version(service, "service-2")
        folder = target / service / version
        folder.mkdir(parents=True)
        _dump(folder / "service-2.json", trimmed(loader.load_service_model(service, "service-2", version), operations))
        for name in SERVICE_FILES:
            _dump(folder / f"{name}.json", loader.load_service_model(service, name, version))
    for name in GLOBAL_FILES:
        _dump(target / f"{name}.json", loader.load_data(name))
    endpoints = loader.load_data("endpoints")
    for partition in endpoints["partitions"]:
        partition["services"] = {name: part for name, part in partition["services"].items() if name in kept}
    _dump(target / "endpoints.json", endpoints)
    _dump(target / MANIFEST, {"botocore": botocore.__version__, "operations": sorted(kept["ec2"])})
    return sum(path.stat().st_size for path in target.rglob("*.json"))


def trimmed(model: Mapping[str, Any], operations: Iterable[str]) -> dict[str, Any]:
    """Reduce a service model to some operations. Raises: KeyError if the service has no such operation. Pure."""
    kept_operations = {name: model["operations"][name] for name in operations}
    shapes: dict[str, Any] = {}
    waiting = [shape for operation in kept_operations.values() for shape in _referenced(operation)]
    while waiting:
        name = waiting.pop()
        if name not in shapes:
            shapes[name] = model["shapes"][name]
            waiting += _referenced(shapes[name])
    reduced = {**model, "operations": kept_operations, "shapes": dict(sorted(shapes.items()))}
    bare = _without_unread(reduced)
    assert isinstance(bare, dict)
    return bare


def _referenced(part: Mapping[str, Any]) -> list[str]:
    """Names of the shapes that an operation or a shape refers to."""
    references = [part[key] for key in _REFERENCES if key in part]
    references += [*part.get("members", {}).values(), *part.get("errors", ())]
    return [reference["shape"] for reference in references]


def _without_unread(value: Any) -> Any:
    """Drop the keys in _UNREAD. A shape's member with such a name is a dict, and stays."""
    if isinstance(value, Mapping):
        parts = {}
        for key, part in value.items():
            if key not in _UNREAD or isinstance(part, Mapping):
                parts[key] = _without_unread(part)
        return parts
    if isinstance(value, list):
        return [_without_unread(part) for part in value]
    return value


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")))


def main() -> int:
    """Write the data and print their size."""
    targets = {DATA_DIR: KEPT, INVENTORY_DATA_DIR: KEPT_FOR_INVENTORY}
    if len(sys.argv) > 1:
        targets = {Path(sys.argv[1]): KEPT}
    for target, kept in targets.items():
        sys.stdout.write(f"{target}: {write(target, kept)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
