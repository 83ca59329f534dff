"""Write the part of botocore's data that we use: `python -m ipamd.cloud.trim_model [directory]`.

Kept: our EC2 operations and the shapes that they reach, two STS operations (botocore's credential chain uses them to assume a
service account's role), the endpoint rules of both, and the global files that botocore reads to make a client. Dropped:
documentation and enum lists, which neither serialiser, validator nor parser reads. `make setup` and the image build run it; the
result is not committed. Rejected: a hand-written EC2 client, because signing, credentials and endpoints are better shared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.loaders import Loader
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

# The trimmed AWS service model: where it is, whether it is usable, and a botocore loader for it.
#
# botocore describes EC2 in 4.3 MB of JSON, of which we use a dozen operations; loading all of it costs a client tens of megabytes.
# `trim_model.py` writes the needed part into `data/` at build time; nothing of botocore is committed. Data of another botocore
# version than the installed one is never used, because parser and model must match. botocore is imported inside functions only.


DATA_DIR = Path(__file__).with_name("data")

MANIFEST = "manifest.json"
"""Written last: if it exists, the rest is complete."""

REMAKE = "run `python -m ipamd.cloud.trim_model` (make setup does)"


def why_unusable(directory: Path, *, operations: frozenset[str]) -> str:
    """Return why the trimmed data cannot be used; an empty string if it can.

    Args:
        directory: where `trim_model` writes.
        operations: EC2 APIs that the data must hold.
    """
    import botocore

    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        made_from, held = manifest["botocore"], frozenset(manifest["operations"])
    except FileNotFoundError:
        return f"there is no trimmed model in {directory}: {REMAKE}"
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return f"{directory / MANIFEST} cannot be read ({exc}): {REMAKE}"
    if made_from != botocore.__version__:
        return f"the trimmed model is of botocore {made_from}, installed is {botocore.__version__}: {REMAKE}"
    missing = sorted(operations - held)
    return f"the trimmed model lacks {', '.join(missing)}: {REMAKE}" if missing else ""


def trimmed_loader(directory: Path) -> Loader:
    """Make a loader that reads the trimmed data only.

    The data is declared as botocore's own, because botocore resolves endpoints of other data by legacy rules.
    """
    from botocore.loaders import Loader

    loader = Loader(extra_search_paths=[str(directory)], include_default_search_paths=False)
    loader.BUILTIN_DATA_PATH = str(directory)
    return loader


# The EC2 APIs that this daemon calls: IAM must allow them, and the trimmed model contains them.
#
# `manifests/iam-policy.json` is the policy.


OPERATIONS: Mapping[str, str] = {
    "AssignIpv6Addresses": "assign_ipv6_addresses",
    "AssignPrivateIpAddresses": "assign_private_ip_addresses",
    "AttachNetworkInterface": "attach_network_interface",
    "CreateNetworkInterface": "create_network_interface",
    "DeleteNetworkInterface": "delete_network_interface",
    "DescribeInstanceTypes": "describe_instance_types",
    "DescribeNetworkInterfaces": "describe_network_interfaces",
    "DescribeSubnets": "describe_subnets",
    "DetachNetworkInterface": "detach_network_interface",
    "ModifyNetworkInterfaceAttribute": "modify_network_interface_attribute",
    "UnassignIpv6Addresses": "unassign_ipv6_addresses",
    "UnassignPrivateIpAddresses": "unassign_private_ip_addresses",
}
"""API name -> method of a botocore client: what the port `Ec2` needs. amazon-vpc-cni-k8s calls more (its docs/iam-policy.md)."""


KEPT: Mapping[str, tuple[str, ...]] = {
    "ec2": tuple(OPERATIONS),
    "sts": ("AssumeRole", "AssumeRoleWithWebIdentity"),
}

GLOBAL_FILES = ("partitions", "sdk-default-configuration", "_retry")
"""Copied unchanged (18 KB): botocore reads them to make a client."""

SERVICE_FILES = ("endpoint-rule-set-1",)

_REFERENCES = ("input", "output", "member", "key", "value")
_UNREAD = ("documentation", "documentationUrl", "enum", "examples")


def write(target: Path = DATA_DIR) -> int:
    """Replace `target` with trimmed data of the installed botocore. Returns: bytes written."""
    import botocore
    from botocore.loaders import Loader

    loader = Loader(include_default_search_paths=False, extra_search_paths=[Loader.BUILTIN_DATA_PATH])
    shutil.rmtree(target, ignore_errors=True)
    for service, operations in KEPT.items():
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
        partition["services"] = {name: part for name, part in partition["services"].items() if name in KEPT}
    _dump(target / "endpoints.json", endpoints)
    _dump(target / MANIFEST, {"botocore": botocore.__version__, "operations": sorted(KEPT["ec2"])})
    return sum(path.stat().st_size for path in target.rglob("*.json"))


def trimmed(model: Mapping[str, Any], operations: Iterable[str]) -> dict[str, Any]:
    """Reduce a service model to some operations. Raises: KeyError if the service has no such operation. Pure."""
    kept = {name: model["operations"][name] for name in operations}
    shapes: dict[str, Any] = {}
    waiting = [shape for operation in kept.values() for shape in _referenced(operation)]
    while waiting:
        name = waiting.pop()
        if name not in shapes:
            shapes[name] = model["shapes"][name]
            waiting += _referenced(shapes[name])
    reduced = {**model, "operations": kept, "shapes": dict(sorted(shapes.items()))}
    bare = _without_unread(reduced)
    assert isinstance(bare, dict)
    return bare


def _referenced(part: Mapping[str, Any]) -> list[str]:
    """Names of the shapes that an operation or a shape refers to."""
    references = [part[key] for key in _REFERENCES if key in part]
    references += [*part.get("members", {}).values(), *part.get("errors", ())]
    return [reference["shape"] for reference in references]


def _without_unread(value: Any) -> Any:
    """Drop keys that nothing reads. A member that happens to have such a name is a dict and stays."""
    if isinstance(value, Mapping):
        return {key: _without_unread(item) for key, item in value.items() if key not in _UNREAD or isinstance(item, Mapping)}
    return [_without_unread(item) for item in value] if isinstance(value, list) else value


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")))


def main() -> int:
    """Write the data and print its size."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA_DIR
    sys.stdout.write(f"{target}: {write(target)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
