"""The trimmed model is the whole model where we look at it, and is used only when it fits the installed botocore."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.session import Session

from ipamd.cloud import trim_model
from ipamd.cloud.operations import OPERATIONS
from ipamd.cloud.trimmed_model import MANIFEST, trimmed_loader, why_unusable

NAMES = frozenset(OPERATIONS)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freshly trimmed data."""
    directory = tmp_path_factory.mktemp("data") / "trimmed"
    trim_model.write(directory)
    return directory


def service(loader: Loader, name: str) -> ServiceModel:
    """A service model from a loader."""
    return ServiceModel(loader.load_service_model(name, "service-2"), name)


def outline(shape: Shape | None, seen: tuple[str, ...] = ()) -> Any:
    """Everything that serialiser, validator and parser read of a shape, recursively."""
    if shape is None or shape.name in seen:
        return shape and shape.name
    below = (*seen, shape.name)
    parts: dict[str, Any] = {"name": shape.name, "type": shape.type_name, "how": dict(shape.serialization)}
    parts["metadata"] = {key: value for key, value in shape.metadata.items() if key != "enum"}
    if shape.type_name == "structure":
        parts["members"] = {key: outline(value, below) for key, value in shape.members.items()}
    elif shape.type_name == "list":
        parts["member"] = outline(shape.member, below)
    elif shape.type_name == "map":
        parts["pair"] = (outline(shape.key, below), outline(shape.value, below))
    return parts


@pytest.mark.parametrize(("name", "operation"), [(s, o) for s, kept in trim_model.KEPT.items() for o in kept])
def test_trimmed_operations_equal_the_whole_ones(data_dir: Path, name: str, operation: str) -> None:
    """For each operation that we call, input and output shapes are those of the whole model, members, names and all."""
    ours = service(trimmed_loader(data_dir), name).operation_model(operation)
    theirs = service(Loader(), name).operation_model(operation)
    assert outline(ours.input_shape) == outline(theirs.input_shape)
    assert outline(ours.output_shape) == outline(theirs.output_shape)
    assert ours.http == theirs.http
    assert ours.metadata == theirs.metadata
    assert ours.auth_type == theirs.auth_type


def test_operations_are_named_as_botocore_names_them() -> None:
    """Our table of method names is botocore's own mapping."""
    assert {api: botocore.xform_name(api) for api in OPERATIONS} == dict(OPERATIONS)


REGIONS = [
    "us-west-2",
    "eu-central-1",
    "cn-north-1",
    "us-gov-west-1",
    "us-iso-east-1",
    "eusc-de-east-1",
    "me-central-1",
    "xx-nowhere-9",
]


@pytest.mark.parametrize("name", sorted(trim_model.KEPT))
@pytest.mark.parametrize("region", REGIONS)
def test_endpoints_are_resolved_alike(data_dir: Path, region: str, name: str) -> None:
    """In every partition, and in a region that botocore does not know yet, requests go where the whole data sends them."""
    sent = []
    for loader in (Loader(), trimmed_loader(data_dir)):
        session = Session()
        session.register_component("data_loader", loader)
        session.set_credentials("key", "secret")
        client = session.create_client(name, region_name=region)

        def stop(request: Any, **_: object) -> None:
            credential = request.headers["Authorization"].decode().split(",")[0]
            raise LookupError(request.url, *credential.split("/")[2:4])  # without the key and the date

        client.meta.events.register("before-send", stop)
        call = client.describe_subnets if name == "ec2" else client.assume_role
        with pytest.raises(LookupError) as stopped:
            call(**({} if name == "ec2" else {"RoleArn": "arn:aws:iam::123456789012:role/r", "RoleSessionName": "session"}))
        sent.append(stopped.value.args)
    assert sent[0] == sent[1]
    assert sent[0][1:] == (region, name)


def test_the_data_is_small_and_stamped(data_dir: Path) -> None:
    """The trimmed data is a fiftieth of EC2's model, and says of which botocore it is."""
    assert sum(path.stat().st_size for path in data_dir.rglob("*")) < 150_000
    assert json.loads((data_dir / MANIFEST).read_text())["botocore"] == botocore.__version__


def test_fitting_data_is_usable(data_dir: Path) -> None:
    """Data of the installed botocore with all our operations is used."""
    assert why_unusable(data_dir, operations=NAMES) == ""


def test_data_of_another_botocore_is_not_used(data_dir: Path, tmp_path: Path) -> None:
    """A model never meets the parser of another version; the reason says how to remake it (I14)."""
    manifest = json.loads((data_dir / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "botocore": "1.0.0"}))
    assert "1.0.0" in why_unusable(tmp_path, operations=NAMES)
    assert "trim_model" in why_unusable(tmp_path, operations=NAMES)


def test_data_without_an_operation_is_not_used(data_dir: Path) -> None:
    """Data made before an operation was added is not used."""
    assert "RunInstances" in why_unusable(data_dir, operations=NAMES | {"RunInstances"})


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "not json"])
def test_missing_or_broken_data_is_not_used(tmp_path: Path, text: str | None) -> None:
    """No data, half-written data and other people's data are reasons, not crashes."""
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    assert why_unusable(tmp_path, operations=NAMES) != ""


def test_lists_of_enis_can_ask_for_managed_ones(data_dir: Path) -> None:
    """The parameter and the answer's field are in the installed botocore: without them a list would lack such ENIs."""
    loader = Loader(include_default_search_paths=False, extra_search_paths=[str(data_dir)])
    operation = service(loader, "ec2").operation_model("DescribeNetworkInterfaces")
    assert operation.input_shape is not None
    assert "IncludeManagedResources" in operation.input_shape.members
    assert operation.output_shape is not None
    eni = operation.output_shape.members["NetworkInterfaces"].member
    assert {"Managed", "Principal"} <= set(eni.members["Operator"].members)


def test_an_unknown_operation_is_noticed_when_trimming() -> None:
    """A misspelt operation fails the build, not the first call in production."""
    with pytest.raises(KeyError):
        trim_model.trimmed(Loader().load_service_model("ec2", "service-2"), ["DescribeNothing"])


def test_importing_the_adapters_imports_no_aws_library() -> None:
    """A start that serves DEL first does not wait for botocore to be imported (I12)."""
    code = (
        "import sys, ipamd.cloud.ec2, ipamd.cloud.metadata\n"
        "heavy = {'boto3', 'botocore', 'urllib3'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
