"""The DaemonSet says what the daemon needs, no less and no more; defaults and exit statuses are asked of the code."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path, PurePosixPath

import pytest
import yaml

import ipamd
from bench.probes import PAGES
from ipamd.http.health_pages import START_S, HealthPages
from ipamd.rpc.run_dir import LOCK_WAIT_S
from ipamd.runtime.cri_socket import USUAL_SOCKETS
from ipamd.settings import Settings, describe, load
from tests.unit.manifests.manifest import (
    MANIFESTS,
    container,
    daemonset,
    documents,
    environment,
    init_container,
    mounts,
    pod,
)

STOP_S = 2
"""What `RpcServer.stop` may take after the drain: a grace of 1 s and 1 s of waiting (ipamd/daemon.py, ipamd/rpc/server.py)."""


def test_no_permission_at_the_kubernetes_api() -> None:
    """I12: no role but the policy agent's, which is off by default; no token in the pod; only these two objects."""
    assert sorted(document["kind"] for document in documents()) == ["DaemonSet", "ServiceAccount"]
    assert pod()["automountServiceAccountToken"] is False
    agent = (
        MANIFESTS / "chart" / "templates" / "policy-agent.yaml"
    )  # for the policy agent's container, which has a token of its own
    assert agent.read_text().startswith("{{- if .Values.networkPolicyAgent.enabled }}\n")
    assert yaml.safe_load((MANIFESTS / "chart" / "values.yaml").read_text())["networkPolicyAgent"]["enabled"] is False
    for path in (path for path in MANIFESTS.rglob("*") if path.is_file() and path != agent):
        text = path.read_text()
        assert not [word for word in ("kind: Role", "kind: ClusterRole", "rbac.authorization") if word in text], path


def test_mounts_cover_the_paths_that_the_settings_name() -> None:
    """Socket, datastore, spool, conflist, CRI socket and sandbox namespaces lie in mounts, at the same path on the node."""
    settings = load(environment())
    assert settings.runtime.cri_socket in USUAL_SOCKETS
    wanted = {
        settings.daemon.run_dir / "ipamd.sock": False,
        settings.daemon.conflist_path: False,
        settings.daemon.cni_bin_dir / "portmap": False,
        Path(settings.daemon.history_dir): False,
        Path(settings.runtime.cri_socket): True,
        Path("/run/netns/cni-0"): False,
        Path("/run/aws-node/ipam.json"): False,
        settings.takeover.egress_state / "v6pd": False,
    }
    for path, is_read_only in wanted.items():
        covering = [mount for mount in mounts() if PurePosixPath(path).is_relative_to(mount["mountPath"])]
        assert len(covering) == 1, path
        assert covering[0]["mountPath"] == covering[0]["hostPath"]["path"]
        assert bool(covering[0].get("readOnly")) == is_read_only
        # a mount of the file itself would show the old one after it was replaced
        assert str(path) != covering[0]["mountPath"]


def test_environment_repeats_no_default_by_accident() -> None:
    """The paths in the environment are the defaults that plugin and ipamctl assume, and every variable is one of ours."""
    known = {line.env for line in describe(Settings(), {})}
    assert set(environment()) <= known
    assert load(environment()).daemon.run_dir == Settings().daemon.run_dir
    assert load(environment()).daemon.conflist_path == Settings().daemon.conflist_path


def test_custom_networkings_file_is_mounted_where_it_is_looked_for() -> None:
    """A ConfigMap that need not be there, read-only, at the path of the default setting."""
    (mount,) = [one for one in container()["volumeMounts"] if one["name"] == "network"]
    (volume,) = [one for one in pod()["volumes"] if one["name"] == "network"]
    assert mount == {"name": "network", "mountPath": str(load(environment()).subnets.network_file.parent), "readOnly": True}
    assert volume["configMap"]["optional"]


def test_later_mounts_are_seen() -> None:
    """Namespaces are mounted while the daemon runs, and file systems below the CRI directory must be let go."""
    propagated = {mount["mountPath"] for mount in mounts() if mount.get("mountPropagation") == "HostToContainer"}
    assert propagated == {"/run/netns", "/run/containerd"}


def test_the_node_is_its_own() -> None:
    """The daemon sees the node's network, no taint keeps it away, and only nodes that can run it are chosen."""
    assert pod()["hostNetwork"] is True
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    assert pod()["priorityClassName"] == "system-node-critical"
    (term,) = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    expressions = {item["key"]: (item["operator"], item["values"]) for item in term["matchExpressions"]}
    assert expressions == {
        "kubernetes.io/os": ("In", ["linux"]),
        "kubernetes.io/arch": ("In", ["amd64", "arm64"]),
        "eks.amazonaws.com/compute-type": ("NotIn", ["fargate", "hybrid", "auto"]),
    }


def test_least_privilege() -> None:
    """All capabilities are dropped and two are given back (test_privileges.py shows why); the root file system is read-only."""
    context = container()["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN"]}
    assert context["readOnlyRootFilesystem"] is True
    assert "privileged" not in context
    assert "allowPrivilegeEscalation" not in context  # Kubernetes refuses or ignores false beside SYS_ADMIN


def test_memory_fits() -> None:
    """Requested is the budget of a full node (docs/performance.md); the limit leaves room for a burst and an `ipamctl` beside it."""
    resources = container()["resources"]
    requested, limit = (int(resources[kind]["memory"].removesuffix("Mi")) for kind in ("requests", "limits"))
    assert "| memory, 110 sandboxes" in (MANIFESTS.parent / "docs" / "performance.md").read_text()
    assert requested == 100
    assert 2 * requested <= limit < 4 * requested


def test_one_daemon_at_a_time() -> None:
    """An update never starts a second daemon beside the first on a node."""
    assert daemonset()["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_drain_fits_into_the_grace_period() -> None:
    """Kubernetes kills only after DEL has been served for the drain, calls were finished, and a margin."""
    drain_s = load(environment()).daemon.drain_s
    assert drain_s == Settings().daemon.drain_s
    assert pod()["terminationGracePeriodSeconds"] >= drain_s + STOP_S + 5


def test_no_port_is_claimed() -> None:
    """On the node's network the scheduler would keep the pod off a node where another one claims the same, as aws-node does."""
    assert pod()["hostNetwork"] is True
    assert not [one for one in (container(), init_container()) if "ports" in one]


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.mark.parametrize("probe", PROBES)
def test_probes_ask_what_the_daemon_serves(probe: str, tmp_path: Path) -> None:
    """Port and host are the setting's, loopback, where no pod can flood it; the path is a page that there is."""
    asked = container()[probe]["httpGet"]
    assert f"{asked['host']}:{asked['port']}" == load(environment()).daemon.health_address == Settings().daemon.health_address
    assert ip_address(asked["host"]).is_loopback
    pages = HealthPages(cni_socket=tmp_path / "none", is_ready=lambda: True)
    assert not pages(asked["path"])[0].startswith(b"HTTP/1.1 404")
    assert pages("/else")[0].startswith(b"HTTP/1.1 404")


def test_liveness_spares_a_daemon_that_waits(tmp_path: Path) -> None:
    """A daemon that is not ready is alive, at the start and later; only readiness asks for more."""
    pages = HealthPages(cni_socket=tmp_path / "ipamd.sock", is_ready=lambda: False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ipamd.sock"))
        listener.listen()
        status = {probe: pages(container()[probe]["httpGet"]["path"])[0].split()[1] for probe in PROBES}
    assert status == {"startupProbe": b"200", "livenessProbe": b"200", "readinessProbe": b"503"}


def test_a_roll_is_noticed_within_seconds_and_a_waiting_successor_is_spared() -> None:
    """Ready is seen within 3 s of the start; the start may last longer than the wait for a predecessor's lock, and an answer that
    waits for it comes before kubelet takes it for a failure."""
    startup, readiness = container()["startupProbe"], container()["readinessProbe"]
    assert startup["periodSeconds"] == 1
    assert startup["initialDelaySeconds"] <= 2
    assert readiness["periodSeconds"] <= 30
    assert "initialDelaySeconds" not in readiness
    assert startup["timeoutSeconds"] > START_S
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 2 * LOCK_WAIT_S
    assert pod()["terminationGracePeriodSeconds"] < LOCK_WAIT_S


def test_the_bench_asks_as_often_as_kubelet() -> None:
    """What a node costs at rest is measured with the probes of these manifests."""
    asked = {page.partition("/")[2]: period_s for page, period_s in PAGES}
    for probe in (container()[name] for name in ("readinessProbe", "livenessProbe")):
        assert asked[probe["httpGet"]["path"].lstrip("/")] == probe["periodSeconds"]


def test_one_image_of_this_version() -> None:
    """Both containers run the image of this release, and the labels say so."""
    tags = {each["image"].rpartition(":")[2] for each in (container(), init_container())}
    assert tags == {ipamd.__version__}
    for labels in (daemonset()["metadata"]["labels"], daemonset()["spec"]["template"]["metadata"]["labels"]):
        assert labels["app.kubernetes.io/version"] == ipamd.__version__


def test_selector_matches_its_pods() -> None:
    """The selector, which can never be changed, holds no version."""
    selector = daemonset()["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "vpc-ipamd"}
    assert selector.items() <= daemonset()["spec"]["template"]["metadata"]["labels"].items()
