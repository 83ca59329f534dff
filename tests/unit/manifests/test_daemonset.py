"""The DaemonSet says what the daemon needs, no less and no more; defaults and exit statuses are asked of the code."""

from __future__ import annotations

import subprocess
from configparser import ConfigParser
from pathlib import Path, PurePosixPath

import pytest
from jsonschema import Draft202012Validator

import ipamd
from ipamd.config import Settings, describe, load
from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_AWAY
from ipamd.runtime.cri import USUAL_SOCKETS
from tests.unit.manifests.manifest import (
    MANIFESTS,
    ROOT,
    container,
    daemonset,
    documents,
    environment,
    init_container,
    mounts,
    pod,
    schema,
)

STOP_S = 2
"""What `RpcServer.stop` may take after the drain: a grace of 1 s and 1 s of waiting (ipamd/daemon.py, ipamd/rpc/server.py)."""


@pytest.mark.parametrize(("kind", "name"), [("DaemonSet", "daemonset"), ("ServiceAccount", "service_account")])
def test_schema(kind: str, name: str) -> None:
    """Every field is one that Kubernetes has, of the right type; a misspelt one would be dropped in silence by the API server."""
    Draft202012Validator.check_schema(schema(name))
    (document,) = [document for document in documents() if document["kind"] == kind]
    assert [error.message for error in Draft202012Validator(schema(name)).iter_errors(document)] == []


@pytest.mark.parametrize(
    "change", [{"hostNetworks": True}, {"hostNetwork": "yes"}, {"volumes": [{"name": "run", "hostPath": "/run"}]}]
)
def test_schema_is_strict(change: dict[str, object]) -> None:
    """The schema notices a misspelt field, a wrong type and a wrong shape."""
    changed = daemonset()
    changed["spec"]["template"]["spec"] |= change
    assert list(Draft202012Validator(schema("daemonset")).iter_errors(changed))


def test_no_permission_at_the_kubernetes_api() -> None:
    """I12: no role anywhere in the manifests, no token in the pod, and nothing but these two objects."""
    assert sorted(document["kind"] for document in documents()) == ["DaemonSet", "ServiceAccount"]
    assert pod()["automountServiceAccountToken"] is False
    for path in (path for path in MANIFESTS.rglob("*") if path.is_file()):
        text = path.read_text()
        assert not [word for word in ("kind: Role", "kind: ClusterRole", "rbac.authorization") if word in text], path


def test_mounts_cover_the_paths_that_the_settings_name() -> None:
    """Socket, datastore, spool, conflist, CRI socket and sandbox namespaces lie in mounts, at the same path on the node."""
    settings = load(environment())
    assert settings.runtime.cri_socket in USUAL_SOCKETS
    wanted = {
        settings.daemon.run_dir / "ipamd.sock": False,
        settings.daemon.conflist_path: False,
        Path(settings.runtime.cri_socket): True,
        Path("/run/netns/cni-0"): False,
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


def test_one_daemon_at_a_time() -> None:
    """An update never starts a second daemon beside the first on a node."""
    assert daemonset()["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_drain_fits_into_the_grace_period() -> None:
    """Kubernetes kills only after DEL has been served for the drain, calls were finished, and a margin."""
    drain_s = load(environment()).daemon.drain_s
    assert drain_s == Settings().daemon.drain_s
    assert pod()["terminationGracePeriodSeconds"] >= drain_s + STOP_S + 5


def test_metrics_port_is_the_setting() -> None:
    """The port that the manifest announces is the one that the daemon listens on."""
    (port,) = container()["ports"]
    assert load(environment()).daemon.metrics_address.rpartition(":")[2] == str(port["containerPort"])
    assert port["hostPort"] == port["containerPort"]


def _commands() -> set[str]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {line.split("=")[0].strip() for line in setup["options.entry_points"]["console_scripts"].split("\n") if line}


def test_probes_call_what_is_there() -> None:
    """Both probes run an installed command with a subcommand that it has."""
    assert "ipamctl" in _commands()
    assert container()["readinessProbe"]["exec"]["command"] == ["ipamctl", "status"]
    shell, flag, script = container()["livenessProbe"]["exec"]["command"]
    assert (shell, flag) == ("sh", "-c")
    assert script.startswith("ipamctl status ")
    with pytest.raises(SystemExit, match="0"):
        ipamctl.main(["status", "--help"])


ALIVE = {"ready": (0, True), "not ready": (EXIT_ATTENTION, True), "away": (EXIT_AWAY, False)}


@pytest.mark.parametrize(("status", "is_alive"), ALIVE.values(), ids=ALIVE)
def test_liveness_spares_a_daemon_that_waits(tmp_path: Path, status: int, is_alive: bool) -> None:
    """A daemon that is not ready is alive; one that does not answer is not."""
    stand_in = tmp_path / "ipamctl"
    stand_in.write_text(f'#!/bin/sh\n[ "$1" = status ] && exit {status}\nexit 64\n')
    stand_in.chmod(0o755)
    probe = subprocess.run(
        container()["livenessProbe"]["exec"]["command"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False
    )
    assert (probe.returncode == 0) == is_alive


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
