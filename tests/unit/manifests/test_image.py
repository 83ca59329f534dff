"""Image, conflist, IAM policy and node preparation agree with the code that they carry."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import ipamd
from cni_plugin import vpc_cni
from ipamd.cloud.operations import OPERATIONS
from ipamd.host import conflist
from ipamd.kernel import nft
from ipamd.settings import Settings, load
from lab.node.daemon import SHIPPED_PYTHON
from tests.unit.manifests import dockerfile
from tests.unit.manifests.manifest import MANIFESTS, ROOT, container, environment, init_container, schema

INSTRUCTIONS = dockerfile.read(MANIFESTS / "Dockerfile")
FINAL = INSTRUCTIONS[-1].stage
IMAGE_SCRIPT = (ROOT / "tools" / "image.sh").read_text()


def _all(name: str, stage: str | None = None) -> list[str]:
    return [each.text for each in INSTRUCTIONS if each.name == name and stage in (None, each.stage)]


def test_stages() -> None:
    """One base, named by digest; the build fetches and compiles nothing, uses no package manager, and executes nothing of BASE."""
    assert _all("FROM") == ["${BUILDER} AS interpreted", "${BUILDER} AS daemon", "${BASE}"]
    assert _all("ARG", "") == ["BASE", "BUILDER=${BASE}"]
    assert _all("ARG") == ["BASE", "BUILDER=${BASE}", "TARGETARCH", "TARGETARCH"]
    assert "@$(in_store images --format '{{.Digest}}'" in IMAGE_SCRIPT
    assert not [text for text in _all("RUN") if re.search(r"apt|curl|wget|gcc|git ", text)]
    assert not _all("RUN", FINAL)
    assert _all("ENTRYPOINT") == ['["ipamd"]']


def test_copied_files_exist_and_are_sent_to_the_build() -> None:
    """What is copied is there, and .dockerignore lets it through."""
    sent = [line[1:] for line in (MANIFESTS / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")]
    for text in _all("COPY"):
        words = text.split()
        if words[0].startswith("--from="):
            continue
        for source in [word for word in words[:-1] if not word.startswith("--")]:
            for made in [source.replace("${TARGETARCH}", arch) for arch in ("amd64", "arm64")]:
                assert any(made == path or made.startswith(path + "/") for path in sent), made
            if not source.startswith("build/"):  # `tools/image.sh context` makes these
                assert (ROOT / source).exists(), source


def test_the_base_has_what_the_daemon_loads() -> None:
    """What the daemon (nftables) and grpcio (libstdc++) load at run time, and the interpreter of the recipe."""
    (included,) = re.findall(r"--include=(\S+)", IMAGE_SCRIPT)
    assert {nft.PACKAGE, "python3.11-minimal", "libpython3.11-stdlib", "libstdc++6"} == set(included.split(","))


def test_trimmed_model_is_made_for_the_installed_package() -> None:
    """The EC2 model is trimmed where no source tree is in the way, else it would be written beside the sources and lost."""
    lines = (ROOT / "tools" / "image_python.sh").read_text().splitlines()
    trim = next(index for index, line in enumerate(lines) if "ipamd.cloud.trim_model" in line)
    assert [line for line in lines[:trim] if line.startswith("cd ")] == ["cd /"]


def test_wheels_are_known_by_hash() -> None:
    """Every installation from outside asks for hashes and for no index; so does the download."""
    script = (ROOT / "tools" / "image_python.sh").read_text()
    assert script.count("--require-hashes") == script.count("--requirement ") == 2
    assert "--no-index" in script
    assert "pip download" in IMAGE_SCRIPT
    assert "--no-deps --require-hashes --only-binary :all:" in IMAGE_SCRIPT


def test_versions_agree() -> None:
    """The image's label, daemon and plugin are of one version."""
    (label,) = _all("LABEL")
    assert f'org.opencontainers.image.version="{ipamd.__version__}"' in label
    assert ipamd.__version__ == vpc_cni.PLUGIN_VERSION


def test_commands_of_the_daemonset_are_in_the_image() -> None:
    """What the init container runs is what the image has at that path, and the probes' PATH has ipamctl."""
    placed = set()
    for text in _all("COPY", FINAL):
        *sources, target = [word for word in text.split() if not word.startswith("--")]
        placed |= {target + source.rsplit("/", 1)[-1] for source in sources} if target.endswith("/") else {target}
    command = init_container()["command"]
    assert {*command[:2], command[1] + "-interpreted"} <= placed
    assert command[2] == init_container()["volumeMounts"][0]["mountPath"]
    (variables,) = _all("ENV", FINAL)
    assert re.match(r"PATH=/opt/ipamd/bin:", variables)
    assert "command" not in container()  # the image's entry point


def test_bytecode_is_made_as_it_is_run() -> None:
    """The lab's daemons run with the image's options, and the image has bytecode of these, where its Python looks for it."""
    (variables,) = _all("ENV", FINAL)
    wanted = SHIPPED_PYTHON | {"PYTHONPYCACHEPREFIX": "/opt/ipamd/bytecode"}
    assert {f"{name}={value}" for name, value in wanted.items()} <= set(variables.split())
    assert "RUN tools/image_python.sh /src/wheels /opt/ipamd" in (MANIFESTS / "Dockerfile").read_text()
    script = (ROOT / "tools" / "image_python.sh").read_text()
    assert re.search(r'PYTHONPYCACHEPREFIX="\$target/bytecode" \S+ -OO -X no_debug_ranges -m compileall', script)
    assert '"$target/lib" /usr/lib/python3.11 >' in script


def test_reference_plugins_are_where_the_daemon_looks_for_them() -> None:
    """What the pinned build makes for the image's architecture is copied to the default of the setting."""
    context = IMAGE_SCRIPT.partition("\ncontext() {\n")[2].partition("\n}\n")[0]
    assert 'tools/build_reference_plugins.sh "$context/plugins" "$arch"' in context
    assert f"build/image/${{TARGETARCH}}/plugins {Settings().daemon.reference_plugins}" in _all("COPY", FINAL)
    assert '--build-arg "TARGETARCH=$arch"' in IMAGE_SCRIPT


def test_no_image_without_reference_plugins(tmp_path: Path) -> None:
    """Where Go does not fetch or build them, the build of the image says so, and ends before it has changed anything."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for path in (tmp_path / "build" / "vpc-cni", tmp_path / "bin" / "go"):
        path.parent.mkdir()
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    variables = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SCRATCH": str(tmp_path)}
    command = [str(tmp_path / "tools" / "image.sh"), "context"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "image: no reference plugins" in done.stderr
    assert list((tmp_path / "build" / "image").iterdir()) == []


def test_reference_plugins_are_pinned() -> None:
    """One version in go.mod and plugins.json, checksums of its sources, and of every file for both architectures."""
    folder = ROOT / "tools" / "reference_plugins"
    pins, sums = json.loads((folder / "plugins.json").read_text()), (folder / "go.sum").read_text()
    required = f"{pins['module']} v{pins['version']}"
    assert f"\t{required} //" in (folder / "go.mod").read_text()
    assert f"{required} h1:" in sums
    names = {line.rsplit("/", 1)[1] for line in (folder / "go.mod").read_text().splitlines() if "/plugins/plugins/" in line}
    assert names == {"loopback", "portmap", "bandwidth", "tuning"}
    assert set(pins["sha256"]) == {"amd64", "arm64"}
    for listed in pins["sha256"].values():
        assert set(listed) == names
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in listed.values())


def test_conflist_is_what_the_daemon_writes() -> None:
    """manifests/conflist.json is for reading only: the daemon writes its own, and it is this one."""
    shown = json.loads((MANIFESTS / "conflist.json").read_text())
    assert shown == conflist.render(load(environment()))
    Draft202012Validator.check_schema(schema("conflist"))
    Draft202012Validator(schema("conflist")).validate(shown)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"ENABLE_BANDWIDTH_PLUGIN": "true"},
        {"VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": "1", "ENABLE_BANDWIDTH_PLUGIN": "1"},
        {"ENABLE_POD_ENI": "true"},
    ],
)
def test_every_conflist_is_valid(variables: dict[str, str]) -> None:
    """Whatever is chained, the list is one that the specification allows, ours comes first, and 1.0.0 is among the versions."""
    made = conflist.render(load(variables))
    Draft202012Validator(schema("conflist")).validate(made)
    assert made["plugins"][0]["type"] == "vpc-cni"
    assert made["cniVersion"] in made["cniVersions"]


def _actions() -> dict[str, dict[str, object]]:
    policy = json.loads((MANIFESTS / "iam-policy.json").read_text())
    found: dict[str, dict[str, object]] = {}
    for statement in policy["Statement"]:
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            assert action not in found, f"{action} is allowed twice"
            found[action] = statement
    return found


def test_policy_is_valid() -> None:
    """The policy is well formed, allows whole action names only, and allows nothing twice."""
    Draft202012Validator.check_schema(schema("iam_policy"))
    Draft202012Validator(schema("iam_policy")).validate(json.loads((MANIFESTS / "iam-policy.json").read_text()))


def test_policy_allows_exactly_the_calls_we_make() -> None:
    """Each EC2 call of the daemon, and the tags that come with CreateNetworkInterface, which EC2 checks as a call of its own."""
    assert set(_actions()) == {f"ec2:{api}" for api in OPERATIONS} | {"ec2:CreateTags"}
    tags = _actions()["ec2:CreateTags"]
    assert tags["Resource"] == "arn:aws:ec2:*:*:network-interface/*"
    assert tags["Condition"] == {"StringEquals": {"ec2:CreateAction": "CreateNetworkInterface"}}


@pytest.mark.privileged
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="node-init changes sysctls: it needs root and unshare"
)
@pytest.mark.parametrize(
    ("environment", "ipv6"),
    [
        ("", "1 0 1"),
        ("ENABLE_IPv6=false ENABLE_V6_EGRESS=F", "1 0 1"),
        ("ENABLE_IPv6=true", "2 1 0"),
        ("ENABLE_IPv6=1", "2 1 0"),
        ("ENABLE_IPv6=false ENABLE_V6_EGRESS=True", "2 1 0"),
        ("mount -t tmpfs none /proc/sys/net/ipv6; ENABLE_V6_EGRESS=true", "1 0 1"),
    ],
)
def test_node_init(tmp_path: Path, environment: str, ipv6: str) -> None:
    """In a namespace of its own: the sysctls are set, those of IPv6 where it is on and the kernel has it, the plugin is put in place
    whole, and a second run changes nothing."""
    before, _, environment = environment.rpartition("; ")
    plugin, target = tmp_path / "vpc-cni", tmp_path / "bin"
    plugin.write_text("#!/bin/sh\necho new\n")
    plugin.chmod(0o755)
    (tmp_path / "vpc-cni-interpreted").write_text("not this one")
    target.mkdir()
    (target / "vpc-cni").write_text("old")
    (tmp_path / "victim").write_text("untouched")
    (target / ".vpc-cni.tmp").symlink_to(tmp_path / "victim")
    script = f"""
        set -e
        ip link add prim0 type veth peer name peer0
        ip addr add 10.0.0.2/24 dev prim0
        ip link set prim0 up; ip link set peer0 up
        ip route add default via 10.0.0.1
        echo 0 >/proc/sys/net/ipv4/ip_forward
        for key in prim0/accept_ra=1 all/forwarding=0 all/disable_ipv6=1; do
            echo ${{key#*=}} >/proc/sys/net/ipv6/conf/${{key%=*}}
        done
        {before or ":"}
        {environment} {MANIFESTS / "node-init"} {plugin} {target}
        {environment} {MANIFESTS / "node-init"} {plugin} {target}
        {"umount /proc/sys/net/ipv6" if before else ":"}
        cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/prim0/rp_filter
        cd /proc/sys/net/ipv6/conf; cat prim0/accept_ra all/forwarding all/disable_ipv6
    """
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-5:] == ["1", "2", *ipv6.split()]
    assert (target / "vpc-cni").read_text() == plugin.read_text()
    assert (target / "vpc-cni").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in target.iterdir()] == ["vpc-cni"]
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.privileged
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="node-init changes sysctls: it needs root and unshare"
)
@pytest.mark.parametrize(("told", "is_early"), [("", "1"), ("false", "1"), ("true", "0"), ("1", "0")])
def test_node_init_turns_early_demultiplexing_off(tmp_path: Path, told: str, is_early: str) -> None:
    """Where it is told to, as the daemon then demands."""
    (tmp_path / "vpc-cni").write_text("#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    key = "/proc/sys/net/ipv4/tcp_early_demux"
    script = f"echo 1 >{key}; {MANIFESTS / 'node-init'} {tmp_path}/vpc-cni {tmp_path}/bin >&2; cat {key}"
    environment = os.environ | {"DISABLE_TCP_EARLY_DEMUX": told}
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", script], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout.strip()) == (0, is_early), done.stderr


@pytest.mark.privileged
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="node-init changes sysctls: it needs root and unshare"
)
@pytest.mark.parametrize("content", [b"\x7fELF of another machine", b"#!/bin/false\n"])
def test_node_init_takes_the_interpreted_plugin_where_the_static_one_does_not_run(tmp_path: Path, content: bytes) -> None:
    """An image of another architecture: the node still gets a plugin that its own Python runs, under the same name."""
    plugin, target = tmp_path / "vpc-cni", tmp_path / "bin"
    plugin.write_bytes(content)
    plugin.chmod(0o755)
    (tmp_path / "vpc-cni-interpreted").write_text("#!/usr/bin/python3\n")
    target.mkdir()
    done = subprocess.run(
        ["unshare", "--net", MANIFESTS / "node-init", plugin, target], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (target / "vpc-cni").read_text() == "#!/usr/bin/python3\n"
    assert "does not run on this machine" in done.stdout
