"""The commands of the pages by task that are for a cluster: real kubectl and helm against a stand-in for the API server.

Each command is run as it stands on its page, in a copy of `manifests/`; those of `aws` become the same call of boto3, which moto
answers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.model import Shape
from botocore.stub import Stubber
from moto import mock_aws

from tests.heavy.api_server import Cluster, serving
from tests.heavy.tools import DEBIANS_KUBECTL, HELM, KUSTOMIZE, needs
from tests.network_files import custom_of
from tests.task_pages import ROOT, Runner, commands, filled
from tests.unit.manifests.test_kubernetes_schemas import VERSIONS, validate

pytestmark = needs("kubectl", "kustomize")

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
WORDS = {"NODE": "node-a", "POD": "vpc-ipamd-1", "NODE_ROLE": "nodes", "REGISTRY": REGISTRY}
OTHER_DAEMON = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "aws-node", "namespace": "kube-system"},
    "spec": {
        "template": {
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}
                            ]
                        }
                    }
                }
            }
        }
    },
}
"""As amazon-vpc-cni-k8s installs it (config/master/aws-k8s-cni.yaml), as far as the page changes it."""


def pod(name: str, node: str, owner: str, **labels: str) -> dict[str, Any]:
    """A pod of a DaemonSet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "kube-system",
            "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "1", "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [{"name": owner, "image": owner}]},
        "status": {"phase": "Running"},
    }


NEWER_KUBECTL = f"""\
#!/bin/sh
if [ "$2" = --kustomize ]; then {KUSTOMIZE} build "$3" | {DEBIANS_KUBECTL} "$1" -f -; exit; fi
exec {DEBIANS_KUBECTL} "$@"
"""
"""Debian's is of 2020, and its own kustomize knows no `resources` that are folders; later ones do with them what this does."""


@dataclass
class Desk:
    """An operator's shell: a checkout, programs, a cluster."""

    folder: Path
    cluster: Cluster

    def run(self, command: str) -> str:
        """Run one command of a page; it must not fail. Returns: what it printed on standard output."""
        if command.startswith("aws "):
            return aws(command, self.folder)
        environment = {
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["/bin/sh", "-c", filled(command, WORDS)],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def daemonset(self) -> dict[str, Any]:
        """Ours, as the cluster has it."""
        return self.cluster.get("DaemonSet", "vpc-ipamd")

    def images(self) -> set[str]:
        """Of both its containers."""
        spec = self.daemonset()["spec"]["template"]["spec"]
        return {one["image"] for one in spec["containers"] + spec["initContainers"]}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A cluster of two nodes on one of which amazon-vpc-cni-k8s runs."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(NEWER_KUBECTL)
    kubectl.chmod(0o755)
    if HELM.exists():
        (tmp_path / "bin" / "helm").symlink_to(HELM)
    with serving() as cluster, mock_aws():
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{cluster.port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        for name, labels in (("node-a", {"vpc-ipamd": "yes"}), ("node-b", {})):
            cluster.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}})
        cluster.add(OTHER_DAEMON)
        cluster.add(pod("aws-node-1", "node-b", "aws-node", **{"k8s-app": "aws-node"}))
        cluster.add(pod("vpc-ipamd-1", "node-a", "vpc-ipamd", **{"app.kubernetes.io/name": "vpc-ipamd"}))
        yield Desk(tmp_path, cluster)


def aws(command: str, folder: Path) -> str:
    """Make the call that `aws SERVICE OPERATION --an-option value` makes: botocore refuses a name that EC2 or IAM does not have."""
    _, service, operation, *words = shlex.split(filled(command, WORDS))
    client = boto3.client(service, region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")
    shapes = client.meta.service_model.operation_model(_in_capitals(operation)).input_shape.members
    arguments = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = _in_capitals(option.removeprefix("--"))
        text = (folder / value.removeprefix("file://")).read_text() if value.startswith("file://") else value
        arguments[name] = _argument(text, shapes[name])
    with ExitStack() as stack:
        if service == "ec2":  # the page's subnets and ENIs do not exist: only the form of the call is checked
            stubber = stack.enter_context(Stubber(client))
            stubber.add_response(operation.replace("-", "_"), {})
        return json.dumps(getattr(client, operation.replace("-", "_"))(**arguments), default=str)


def _in_capitals(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _argument(text: str, shape: Shape) -> Any:
    """Read an argument as the AWS CLI does: `Key=K,Value=V` is a structure, and one value may stand for a list."""
    if shape.type_name == "list":
        return [_argument(text, shape.member)]
    if shape.type_name == "structure":
        fields = dict(part.split("=", 1) for part in text.split(","))
        return {name: _argument(value, shape.members[name]) for name, value in fields.items()}
    if shape.type_name == "integer":
        return int(text)
    return text


def installed(desk: Desk) -> None:
    """Our DaemonSet is there by the page on installing."""
    for command in commands("install.md", Runner.CLUSTER):
        if "overlays/mine" in command and not command.startswith("kubectl delete"):
            desk.run(command)


@pytest.mark.skipif(not HELM.exists(), reason="missing: helm; `tools/setup.sh heavy` installs the tools")
def test_install(desk: Desk) -> None:
    """From the policy to the first pod, and away again; after each command the cluster has what the page says."""
    iam = boto3.client("iam", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    printed = {}
    for command in commands("install.md", Runner.CLUSTER):
        printed[command] = desk.run(command)
        if command == "kubectl apply -f my-daemonset.yaml":
            assert desk.images() == {f"{REGISTRY}/vpc-ipamd:0.1.0"}
            assert desk.daemonset()["spec"]["template"]["spec"]["nodeSelector"] == {"vpc-ipamd": "yes"}
            del desk.cluster.objects["/apis/apps/v1/namespaces/kube-system/daemonsets/vpc-ipamd"]
        elif command == "kubectl apply --kustomize manifests/overlays/mine":
            check_overlay(desk)
        elif command.startswith("kubectl run"):
            first = desk.cluster.get("Pod", "first", "default")
            assert first["spec"]["nodeSelector"] == {"vpc-ipamd": "yes"}
        elif command.startswith("aws iam put"):
            assert iam.list_role_policies(RoleName="nodes")["PolicyNames"] == ["vpc-ipamd"]
    (term,) = desk.cluster.get("DaemonSet", "aws-node")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert {"key": "vpc-ipamd", "operator": "DoesNotExist"} in term["matchExpressions"]
    (nodes,) = (text for command, text in printed.items() if command.startswith("kubectl get nodes"))
    assert re.findall(r"node-\w", nodes) == ["node-a"]
    (others,) = (text for command, text in printed.items() if "k8s-app=aws-node" in command)
    assert others == ""
    assert desk.cluster.names("DaemonSet") == {"aws-node"}
    assert desk.cluster.names("ConfigMap") == desk.cluster.names("ServiceAccount") == set()
    assert "first" not in desk.cluster.names("Pod")
    assert desk.cluster.get("Node", "node-a", "default")["spec"]["unschedulable"]
    assert iam.list_role_policies(RoleName="nodes")["PolicyNames"] == []


def check_overlay(desk: Desk) -> None:
    """Image, cluster, label and settings file are where the page puts them, and Kubernetes knows all fields."""
    found = desk.daemonset()
    validate({key: value for key, value in found.items() if key != "metadata"} | {"metadata": {"name": "x"}}, VERSIONS[-1])
    spec = found["spec"]["template"]["spec"]
    environment = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
    assert desk.images() == {f"{REGISTRY}/vpc-ipamd:0.1.0"}
    assert spec["nodeSelector"] == {"vpc-ipamd": "yes"}
    assert environment["CLUSTER_NAME"] == "prod"
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "settings"]
    (key,) = desk.cluster.get("ConfigMap", "vpc-ipamd-settings")["data"]
    assert environment["VPC_IPAMD_SETTINGS_FILE"] == f"{mount['mountPath']}/{key}"


def test_settings(desk: Desk) -> None:
    """A changed file is tried and arrives in the ConfigMap, and no pod template changes; a wrong one is refused before."""
    installed(desk)
    before = desk.daemonset()["spec"]
    file = desk.folder / "manifests/overlays/mine/settings"
    file.write_text("WARM_IP_TARGET=5\n")
    trying, applying = commands("settings.md", Runner.CLUSTER)
    assert "WARM_IP_TARGET" in desk.run(trying)
    desk.run(applying)
    assert desk.cluster.get("ConfigMap", "vpc-ipamd-settings")["data"] == {"settings": "WARM_IP_TARGET=5\n"}
    assert desk.daemonset()["spec"] == before
    file.write_text("WARM_IP_TARGETT=5\n")
    with pytest.raises(AssertionError, match="WARM_IP_TARGETT"):
        desk.run(trying)


def eni_config(name: str, subnet: str) -> dict[str, Any]:
    """As amazon-vpc-cni-k8s's users have them."""
    spec = {"subnet": subnet, "securityGroups": ["sg-0a1b2c3d"]}
    return {"apiVersion": "crd.k8s.amazonaws.com/v1alpha1", "kind": "ENIConfig", "metadata": {"name": name}, "spec": spec}


def test_custom_networking_from_eniconfigs(desk: Desk) -> None:
    """From the cluster's objects or from a file of them to a ConfigMap that the daemon's own parser reads."""
    desk.cluster.add(eni_config("us-west-2b", "subnet-0b1b2c3d"))
    (desk.folder / "eniconfigs.yaml").write_text(json.dumps(eni_config("group-1", "subnet-0a1b2c3d")))
    zones = []
    for command in commands("subnets.md", Runner.CLUSTER):
        desk.run(command)
        if "convert-eniconfig" in command:
            zones.append(set(custom_of((desk.folder / "network.json").read_text(), source="the file").zones))
    assert zones == [{"us-west-2b"}, {"us-west-2a"}]
    (text,) = desk.cluster.get("ConfigMap", "vpc-ipamd-network")["data"].values()
    assert set(custom_of(text, source="the ConfigMap").zones) == {"us-west-2a"}


def revision(number: int, template: dict[str, Any]) -> dict[str, Any]:
    """What the DaemonSet controller keeps of each template."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "vpc-ipamd", "controller": True}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"vpc-ipamd-{number}",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": "vpc-ipamd"},
            "ownerReferences": [owner | {"uid": "uid-of-/apis/apps/v1/namespaces/kube-system/daemonsets/vpc-ipamd"}],
        },
        "revision": number,
        "data": {"spec": {"template": template | {"$patch": "replace"}}},
    }


def test_upgrade_and_back(desk: Desk) -> None:
    """The new image is in both containers; the undoing brings the one before."""
    installed(desk)
    desk.cluster.add(revision(1, desk.daemonset()["spec"]["template"]))
    *forth, back, filling, patching = commands("upgrade.md", Runner.CLUSTER)
    for command in forth:
        desk.run(command)
    assert desk.images() == {f"{REGISTRY}/vpc-ipamd:0.2.0"}
    desk.cluster.add(revision(2, desk.daemonset()["spec"]["template"]))
    desk.run(back)
    assert desk.images() == {f"{REGISTRY}/vpc-ipamd:0.1.0"}
    desk.run(filling)
    desk.run(patching)
    assert desk.images() == {f"{REGISTRY}/vpc-ipamd:0.1.0", f"{REGISTRY}/vpc-ipamd:0.3.0"}
    found = desk.daemonset()
    validate({key: value for key, value in found.items() if key != "metadata"} | {"metadata": {"name": "x"}}, VERSIONS[-1])
    init = {one["name"]: one for one in found["spec"]["template"]["spec"]["initContainers"]}
    assert set(init) == {"downgrade", "node-init"}
    assert init["downgrade"]["image"].endswith(":0.3.0")
    assert init["downgrade"]["command"][-1].endswith("--to 9")
    desk.run("kubectl apply --kustomize manifests/overlays/mine")


def test_the_page_of_symptoms(desk: Desk) -> None:
    """The pod of the node is found by its labels, and has a log, which can be kept; a target is set in the daemon's container."""
    installed(desk)
    printed = {command: desk.run(command) for command in commands("troubleshooting.md", Runner.CLUSTER)}
    assert printed
    for command, text in printed.items():
        if "get pod" in command:
            assert text == "pod/vpc-ipamd-1\n"
        if "logs" in command and ">" not in command:
            assert "ready" in text
    assert "ready" in (desk.folder / "node.log").read_text()
    (container,) = desk.daemonset()["spec"]["template"]["spec"]["containers"]
    assert {"name": "WARM_IP_TARGET", "value": "10"} in container["env"]


def test_a_node_changes_hands_by_its_label(desk: Desk) -> None:
    """The label comes and goes; both DaemonSets look at it."""
    comes, goes = commands("migration.md", Runner.CLUSTER)
    desk.run(goes)
    assert "vpc-ipamd" not in desk.cluster.get("Node", "node-a", namespace="default")["metadata"]["labels"]
    desk.run(comes)
    assert desk.cluster.get("Node", "node-a", namespace="default")["metadata"]["labels"]["vpc-ipamd"] == "yes"
