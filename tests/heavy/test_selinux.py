"""A compiled SELinux policy allows each access of the DaemonSet, with Bottlerocket's policy as the example (docs/selinux.md).

`bottlerocket.cil` is a subset of it in our words. The whole policy is asked the same where a checkout of
bottlerocket-os/bottlerocket-core-kit is named: BOTTLEROCKET_POLICY=CHECKOUT/packages/selinux-policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.heavy.selinux_policy import Policy
from tests.heavy.tools import ROOT, needs

pytestmark = needs("secilc")

SUBSET = Path(__file__).with_name("bottlerocket.cil")
CHECKOUT = os.environ.get("BOTTLEROCKET_POLICY", "")

DAEMON = "system_u:system_r:container_t:s0:c1,c2"
"""A container that is not privileged: the runtime gives each two categories of its own."""
INIT = "system_u:system_r:control_t:s0-s0:c0.{last}"
"""A privileged container. `last`: the highest category of the policy."""
PLUGIN = "system_u:system_r:container_t:s0"
"""What the runtime's process becomes when it executes a file of /opt/cni: a container without categories."""
RUNTIME = "system_u:system_r:runtime_t:s0-s0:c0.{last}"

LABELS = {
    "/run/vpc-ipamd": "any_t",
    "/run/netns": "any_t",
    "/run/containerd": "any_t",
    "/run/aws-node": "any_t",
    "/run/cni": "any_t",
    "/etc/cni/net.d": "any_t",
    "/opt/cni/bin": "cni_exec_t",
    "/var/lib/vpc-ipamd": "local_t",
}
"""Type of each path that the DaemonSet mounts. /etc/cni is a tmpfs of its own, so its files are not etc_t; /opt/cni is mounted with
cni_exec_t. Source: bottlerocket-core-kit a10182f9, packages/release (etc-cni.mount, opt-cni.mount), packages/selinux-policy/fs.cil."""

READ = {"dir": ("getattr", "search", "read", "open"), "file": ("getattr", "read", "open")}
WRITE = {
    "dir": (*READ["dir"], "write", "add_name", "remove_name", "create", "rmdir"),
    "file": (*READ["file"], "write", "append", "create", "unlink", "rename", "setattr", "lock", "map"),
}
SOCKET_HERE = {"sock_file": ("create", "unlink", "setattr", "write")}
CONNECT = {"sock_file": ("getattr", "write")}
EXECUTE = {"file": ("execute", "execute_no_trans")}

OWN = {
    "capability": ("net_admin", "sys_admin"),
    "netlink_route_socket": ("create", "bind", "getattr", "setopt", "read", "write", "nlmsg_read", "nlmsg_write"),
    "netlink_netfilter_socket": ("create", "bind", "getattr", "setopt", "read", "write"),
    "unix_stream_socket": ("create", "bind", "listen", "accept", "connect"),
    "tcp_socket": ("create", "bind", "listen", "accept", "connect"),
}
"""What the daemon does to itself: capabilities of the manifest, netlink, nftables, its socket, EC2 and the health port."""


def object_of(label: str, categories: str = "") -> str:
    """The context of a file."""
    return f"system_u:object_r:{label}:s0{categories}"


@pytest.fixture(scope="module", params=["subset", "whole"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Bottlerocket's policy: the subset in our words, and the whole one where it is at hand."""
    folder = tmp_path_factory.mktemp("policy")
    if request.param == "subset":
        return Policy([SUBSET], folder / "policy")
    if not CHECKOUT:
        pytest.skip("BOTTLEROCKET_POLICY names no checkout")
    categories = [f"c{number}" for number in range(1024)]
    declared = "".join(f"(category {name})\n" for name in categories)
    (folder / "category.cil").write_text(f"{declared}(categoryorder ({' '.join(categories)}))\n")
    return Policy([*sorted(Path(CHECKOUT).glob("*.cil")), folder / "category.cil"], folder / "policy")


def all_categories(context: str, policy: Policy) -> str:
    """Fill in the highest category that a policy knows."""
    whole = context.format(last="c1023")
    try:
        policy.allows(DAEMON, whole, "process", "getattr")
    except AssertionError:
        return context.format(last="c3")
    return whole


def mounts(container: str) -> Iterator[tuple[str, bool]]:
    """The node's paths that a container of the DaemonSet mounts, and whether it may write there."""
    documents = yaml.safe_load_all((ROOT / "manifests" / "base" / "daemonset.yaml").read_text())
    pod = next(document for document in documents if document["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    for described in (*pod["initContainers"], *pod["containers"]):
        if described["name"] == container:
            for mount in described["volumeMounts"]:
                if mount["name"] in paths:
                    yield paths[mount["name"]], not mount.get("readOnly", False)


def refused(policy: Policy, source: str, target: str, wanted: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The permissions that the policy does not give."""
    return [
        f"{target} {object_class} {permission}"
        for object_class, permissions in wanted.items()
        for permission in permissions
        if not policy.allows(source, target, object_class, permission)
    ]


def test_the_daemon_uses_what_it_mounts(policy: Policy) -> None:
    """Each volume of the node is read, and changed where it is not mounted read-only; nothing else has to be set on the node."""
    found = dict(mounts("ipamd"))
    assert set(found) == set(LABELS)
    for path, is_writable in found.items():
        assert refused(policy, DAEMON, object_of(LABELS[path]), WRITE if is_writable else READ) == [], path
    assert refused(policy, DAEMON, object_of(LABELS["/run/vpc-ipamd"]), SOCKET_HERE) == []
    assert refused(policy, DAEMON, object_of(LABELS["/opt/cni/bin"]), EXECUTE) == [], "plugins are asked for their versions"


def test_the_daemon_reaches_runtime_kernel_and_image(policy: Policy) -> None:
    """CRI's socket, netlink and nftables, namespaces, /proc, and the files of its own image."""
    runtime = all_categories(RUNTIME, policy)
    assert refused(policy, DAEMON, object_of(LABELS["/run/containerd"]), CONNECT) == []
    assert policy.allows(DAEMON, runtime, "unix_stream_socket", "connectto")
    assert refused(policy, DAEMON, DAEMON, OWN) == []
    assert refused(policy, DAEMON, object_of("proc_t"), READ) == []
    assert refused(policy, DAEMON, object_of("data_t", ":c1,c2"), {**READ, "file": (*READ["file"], "map", "execute")}) == []


def test_the_plugin_reaches_the_daemon(policy: Policy) -> None:
    """The runtime may start it in its context; it connects to the socket of a container with other categories, and spools a DEL."""
    runtime = all_categories(RUNTIME, policy)
    assert policy.allows(runtime, PLUGIN, "process", "transition")
    assert policy.allows(PLUGIN, object_of(LABELS["/opt/cni/bin"]), "file", "entrypoint")
    assert refused(policy, PLUGIN, object_of(LABELS["/run/vpc-ipamd"]), {**WRITE, **CONNECT}) == []
    assert policy.allows(PLUGIN, DAEMON, "unix_stream_socket", "connectto")
    assert refused(policy, PLUGIN, PLUGIN, {"unix_stream_socket": ("create", "connect")}) == []


def test_the_init_container_installs_and_sets(policy: Policy) -> None:
    """The plugin into /opt/cni/bin, sysctls below /proc."""
    init = all_categories(INIT, policy)
    for path, _ in mounts("node-init"):
        assert refused(policy, init, object_of(LABELS[path]), WRITE) == [], path
    assert refused(policy, init, object_of("proc_t"), {"file": ("getattr", "open", "read", "write")}) == []


@pytest.mark.parametrize("label", ["etc_t", "state_t", "cache_t"])
def test_the_policy_refuses_what_it_must(policy: Policy, label: str) -> None:
    """Were /etc/cni or /var/lib/vpc-ipamd of another type the daemon could not write there; and no container reads another's files."""
    assert "file create" in " ".join(refused(policy, DAEMON, object_of(label), WRITE))
    assert refused(policy, DAEMON, object_of("data_t", ":c1,c3"), READ) != []
    init = all_categories(INIT, policy)
    assert refused(policy, init, object_of("data_t", ":c1,c3"), READ) == [], (
        "a container of type spc_t is not bound by categories"
    )
