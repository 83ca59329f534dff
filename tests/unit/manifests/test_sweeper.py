"""The CronJob of the sweeper: it names its cluster, deletes on purpose, has no powers, and may do what the program does."""

from __future__ import annotations

import json
from typing import Any

import yaml
from jsonschema import Draft202012Validator

import ipamd
from ipamd.model.eni_tags import CLUSTER_TAG
from ipamd.sweeper import command as command
from ipamd.sweeper.sweep import SECOND_LIST_S
from tests.unit.manifests.manifest import MANIFESTS, container, schema


def _documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all((MANIFESTS / "sweeper" / "sweeper.yaml").read_text())}


def _job() -> dict[str, Any]:
    job: dict[str, Any] = _documents()["CronJob"]["spec"]["jobTemplate"]["spec"]
    return job


def _container() -> dict[str, Any]:
    (found,) = _job()["template"]["spec"]["containers"]
    return dict(found)


def test_it_runs_the_command_of_the_image() -> None:
    """The same image as the daemon's, of this release; the CronJob says --delete, a person has to."""
    assert set(_documents()) == {"ServiceAccount", "CronJob"}
    assert _container()["image"] == container()["image"] == f"vpc-ipamd:{ipamd.__version__}"
    program, *arguments = _container()["command"]
    assert program == "vpc-ipamd-sweeper"
    assert command._parser().parse_args(arguments).delete is True
    assert command._parser().parse_args([]).delete is False


def test_it_names_its_cluster() -> None:
    """Cluster, VPC and region are set; left as they are, they are nobody's."""
    assert {entry["name"]: entry["value"] for entry in _container()["env"]} == {
        "CLUSTER_NAME": "CLUSTER",
        "VPC_ID": "VPC",
        "AWS_REGION": "REGION",
    }


def test_one_at_a_time_and_not_for_ever() -> None:
    """A run that hangs is ended, after its own bound, and none begins beside it."""
    assert _documents()["CronJob"]["spec"]["concurrencyPolicy"] == "Forbid"
    assert command.TIME_S + SECOND_LIST_S < _job()["activeDeadlineSeconds"] < 3600
    assert _job()["backoffLimit"] == 0


def test_it_has_no_powers() -> None:
    """No root, no capability, no writable root, no token of the Kubernetes API, no network of the node."""
    pod = _job()["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert _documents()["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "hostNetwork" not in pod
    assert "volumes" not in pod
    context = _container()["securityContext"]
    assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def test_its_policy_allows_two_calls_and_this_cluster_only() -> None:
    """Describe has no resource; Delete needs the cluster's tag, so that a mistake of the program cannot reach further."""
    policy = json.loads((MANIFESTS / "iam-policy-sweeper.json").read_text())
    Draft202012Validator(schema("iam_policy")).validate(policy)
    looks, deletes = policy["Statement"]
    assert (looks["Action"], deletes["Action"]) == ("ec2:DescribeNetworkInterfaces", "ec2:DeleteNetworkInterface")
    assert deletes["Condition"] == {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": "CLUSTER"}}
