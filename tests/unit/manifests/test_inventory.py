"""The Deployment of the inventory: it names its cluster, has no powers, and may do what the program does, in every partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import ipamd
from ipamd.cloud.inventory_client import INVENTORY_OPERATIONS
from ipamd.inventory import command as command
from tests.unit.manifests.manifest import MANIFESTS, container, schema

PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-eusc")
FOLDER = MANIFESTS / "inventory"


def documents() -> dict[str, dict[str, Any]]:
    """The objects, by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / "inventory.yaml").read_text())}


def pod() -> dict[str, Any]:
    """The pod's specification."""
    specification: dict[str, Any] = documents()["Deployment"]["spec"]["template"]["spec"]
    return specification


def own_container() -> dict[str, Any]:
    """The only container."""
    (own,) = pod()["containers"]
    return dict(own)


def test_it_runs_the_command_of_the_image() -> None:
    """The same image as the daemon's, of this release; one pod at a time, or the calls would double."""
    assert set(documents()) == {"ServiceAccount", "Deployment"}
    assert own_container()["image"] == container()["image"] == f"vpc-ipamd:{ipamd.__version__}"
    program, *arguments = own_container()["command"]
    assert program == "vpc-ipamd-inventory"
    assert command._parser().parse_args(arguments).verb == "serve"
    specification = documents()["Deployment"]["spec"]
    assert (specification["replicas"], specification["strategy"]) == (1, {"type": "Recreate"})


def test_it_names_its_cluster_and_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the manifest sets arrives; the port and the state's directory are those of the program."""
    for entry in own_container()["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    arguments = command._parser().parse_args(["serve"])
    assert (arguments.cluster, arguments.vpc_id, arguments.subnets) == ("CLUSTER", "VPC", "")
    assert arguments.state == Path("/var/lib/inventory/state.json")
    (mount,) = own_container()["volumeMounts"]
    assert (mount["mountPath"], mount["name"]) == (str(arguments.state.parent), pod()["volumes"][0]["name"])
    assert "emptyDir" in pod()["volumes"][0]
    assert own_container()["ports"] == [{"name": "metrics", "containerPort": int(command.LISTEN.rpartition(":")[2])}]


def test_it_has_no_powers() -> None:
    """No root, no capability, no writable root, no token of the Kubernetes API, no network of the node."""
    assert pod()["automountServiceAccountToken"] is False
    assert documents()["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert "hostNetwork" not in pod()
    context = own_container()["securityContext"]
    assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def test_its_policy_allows_its_calls_in_every_partition() -> None:
    """Reading has no resource, so that the policy has no ARN, and holds in each partition as it is."""
    text = (MANIFESTS / "iam-policy-inventory.json").read_text()
    policy = json.loads(text)
    Draft202012Validator(schema("iam_policy")).validate(policy)
    (reads,) = policy["Statement"]
    assert set(reads["Action"]) == {f"ec2:{api}" for api in INVENTORY_OPERATIONS}
    assert reads["Resource"] == "*"
    assert "arn:" not in text


@pytest.mark.parametrize("partition", PARTITIONS)
def test_each_partition_has_its_trust_policy(partition: str) -> None:
    """Only the job's service account gets the role, by the cluster's issuer in that partition."""
    (statement,) = json.loads((FOLDER / f"trust-policy-{partition}.json").read_text())["Statement"]
    assert statement["Principal"] == {"Federated": f"arn:{partition}:iam::ACCOUNT:oidc-provider/ISSUER"}
    account = documents()["ServiceAccount"]["metadata"]
    subject = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert statement["Condition"] == {"StringEquals": {"ISSUER:aud": "sts.amazonaws.com", "ISSUER:sub": subject}}
    assert {path.name for path in FOLDER.glob("trust-policy-*.json")} == {f"trust-policy-{name}.json" for name in PARTITIONS}


def test_its_pod_monitor_selects_its_pod() -> None:
    """By the label and the port's name."""
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    labels = documents()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == own_container()["ports"][0]["name"]
