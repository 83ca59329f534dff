"""The image for arm64, built on another machine: of arm64's files only, and its programs run under QEMU.

To configure the base's Debian packages under QEMU takes more than a minute, so that is done only with VPC_IPAMD_ARM64=1 (`make
test-arm64`). Otherwise the image stands on the same packages as they are unpacked; the recipe adds the same to either.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.heavy.tools import ROOT, needs, unpacked
from tests.unit.manifests.test_locks import DAEMON
from tools.foreign import BINFMT
from tools.image_contents import Archive, lines_of

IS_WHOLE = os.environ.get("VPC_IPAMD_ARM64") == "1"
IMAGE = ROOT / "build" / "image"
SIZE_MAX_MB = 120
MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr/setup00.sh"
AARCH64 = 183
"""Source: elf.h, EM_AARCH64."""

pytestmark = [
    needs("buildah", "mmdebstrap", "qemu-aarch64-static", "go", root=True),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this is an arm64 machine's own image, or none can be built here"),
    pytest.mark.skipif(not (ROOT / "build" / "vpc-cni-arm64").exists(), reason="no build/vpc-cni-arm64: `make plugin-arm64`"),
    pytest.mark.timeout(2400 if IS_WHOLE else 900),
]
whole = pytest.mark.skipif(not IS_WHOLE, reason="of the whole image only: `make test-arm64` runs it (VPC_IPAMD_ARM64=1)")

FOREIGN = [sys.executable, str(ROOT / "tools" / "foreign.py"), "arm64"]
INSIDE = 'mount --rbind /proc "$0/proc"; mount --rbind /dev "$0/dev"; ip link set lo up; exec chroot "$0" "$@"'
"""Run by a shell in namespaces of its own: argument 0 is the root, the others are the command."""

IMPORT_ALL = """
import ctypes, importlib, pkgutil, ipamd
names = [found.name for found in pkgutil.walk_packages(ipamd.__path__, "ipamd.") if not found.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
ctypes.CDLL("libnftables.so.1").nft_ctx_new
print(len(names), "modules")
"""


@pytest.fixture(scope="module", autouse=True)
def qemu() -> None:
    """Skip where this kernel does not let QEMU be registered."""
    done = subprocess.run([*FOREIGN, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())


def _image(*steps: str, **variables: str) -> None:
    command = [str(ROOT / "tools" / "image.sh"), *steps]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr


def _unpacked_base(target: Path) -> None:
    """Put the base's packages into an archive without executing anything of them."""
    (included,) = re.findall(r"--include=(\S+)", (ROOT / "tools" / "image.sh").read_text())
    command = f"mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 --setup-hook={MERGED_USR}"
    command += f" --include={included},base-files,coreutils,dash,mawk bookworm {target}"
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where bases and image are; removed afterwards if they are the test's own, because pytest would keep half a gigabyte."""
    if IS_WHOLE:
        yield IMAGE
        return
    folder = tmp_path_factory.mktemp("image-arm64")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def archive(out: Path) -> Archive:
    """The image of this checkout for arm64, by the steps of `make image ARCH=arm64`."""
    if IS_WHOLE:
        _image("context", "base", "build", "sbom", ARCH="arm64")
        return Archive(out / "vpc-ipamd-arm64.tar")
    _unpacked_base(out / "base-arm64.tar")
    _image("base")
    shutil.copy(IMAGE / "base-amd64.tar", out)
    _image("context", "build", ARCH="arm64", OUT=str(out))
    return Archive(out / "vpc-ipamd-arm64.tar")


@pytest.fixture(scope="module")
def other() -> Path:
    """The image of this checkout for the machine that builds."""
    _image("context", "base", "build")
    return IMAGE / "vpc-ipamd-amd64.tar"


@pytest.fixture(scope="module")
def rootfs(archive: Archive) -> Iterator[Path]:
    """Its content."""
    with unpacked(archive, "arm64") as folder:
        yield folder


def _run(rootfs: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the image in it, under QEMU, on a network of its own."""
    environment = {"PATH": "/opt/ipamd/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [*FOREIGN, "unshare", "--mount", "--net", "sh", "-euc", INSIDE, str(rootfs), *argv]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


def _elf_machines(archive: Archive) -> Mapping[str, int]:
    """Each ELF file -> the number of its machine."""
    found = {}
    for layer in archive.layers():
        for member in layer:
            stream = layer.extractfile(member) if member.isreg() else None
            head = stream.read(20) if stream else b""
            if head[:4] == b"\x7fELF":
                found["/" + member.name] = struct.unpack_from("<H", head, 18)[0]
    return found


def test_every_program_and_library_is_arm64s(archive: Archive) -> None:
    """No wheel, plugin or package of the machine that built it got in; the platform says arm64; the size is within the aim."""
    assert archive.config["architecture"] == "arm64"
    machines = _elf_machines(archive)
    assert {path: machine for path, machine in machines.items() if machine != AARCH64} == {}
    compiled = [path for path in machines if path.endswith("-aarch64-linux-gnu.so")]
    assert any("/grpc/" in path for path in compiled)
    assert {"/opt/vpc-ipamd/vpc-cni", "/opt/vpc-ipamd/plugins/portmap"} <= set(machines)
    assert archive.compressed_bytes < SIZE_MAX_MB * 1e6


def test_the_packages_are_those_of_the_lock(archive: Archive) -> None:
    """Every locked package has a wheel for arm64, and is in the image in that version; bytecode comes with it."""
    paths = set(lines_of(archive))
    site = "/opt/ipamd/lib/python3.11/site-packages"
    listed = {re.sub(r"[-_.]+", "-", path.removeprefix(f"{site}/").lower()) for path in paths if path.endswith(".dist-info")}
    assert listed == {f"{name}-{version}-dist-info".replace(".", "-") for name, (version, _) in DAEMON.items()} | {
        "vpc-ipamd-0-1-0-dist-info"
    }
    assert f"/opt/ipamd/bytecode{site}/ipamd/daemon.cpython-311.opt-2.pyc" in paths


@pytest.mark.parametrize(
    ("argv", "variables", "said"),
    [
        (["uname", "-m"], {}, "aarch64"),
        (["/opt/ipamd/bin/python", "-c", IMPORT_ALL], {}, " modules"),
        (["ipamctl", "--help"], {}, "usage: ipamctl"),
        (["vpc-ipamd-sweeper", "--help"], {}, "usage:"),
        (["vpc-ipamd-inventory", "--help"], {}, "usage:"),
        (["/opt/vpc-ipamd/vpc-cni"], {"CNI_COMMAND": "VERSION"}, '"1.1.0"'),
        (["python3.11", "/opt/vpc-ipamd/vpc-cni-interpreted"], {"CNI_COMMAND": "VERSION"}, '"1.1.0"'),
        *(
            (["/opt/vpc-ipamd/plugins/" + name], {"CNI_COMMAND": "VERSION"}, '"1.1.0"')
            for name in ("loopback", "portmap", "bandwidth", "tuning")
        ),
    ],
    ids=lambda value: " ".join(value)[:40].split("\n")[0] if isinstance(value, list) else "",
)
def test_its_programs_run(rootfs: Path, argv: list[str], variables: dict[str, str], said: str) -> None:
    """Interpreter, every module of the daemon, libnftables, commands, and each plugin answers VERSION."""
    done = _run(rootfs, *argv, **variables)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_the_daemon_refuses_a_wrong_setting(rootfs: Path) -> None:
    """The entry point gets as far as its settings, and says what is wrong."""
    done = _run(rootfs, "ipamd", WARM_ENI_TARGET="many")
    assert done.returncode == 2
    assert "WARM_ENI_TARGET='many'" in done.stderr


def test_the_daemon_comes_alive(rootfs: Path) -> None:
    """Datastore and socket are there. QEMU passes no netfilter sockets on, so it gets no further; `test_a_whole_machine` does.

    libnftables ends the process then, so the socket stays. Were it told to end (TERM), it would remove the socket.
    """
    done = _run(
        rootfs,
        *("timeout", "--signal=KILL", "280"),
        "ipamd",
        VPC_IPAMD_CRI_SOCKET="off",
        AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:9",
        AWS_REGION="us-west-2",
    )
    assert '"message":"alive after ' in done.stdout + done.stderr
    assert (rootfs / "run/vpc-ipamd/ipamd.sock").is_socket()


def test_node_init_prepares_a_node(rootfs: Path) -> None:
    """Its shell script sets forwarding and installs the static plugin, which runs."""
    plugin = "/opt/vpc-ipamd/vpc-cni"
    done = _run(rootfs, "sh", "-euc", f"/opt/vpc-ipamd/node-init {plugin} /tmp; cat /proc/sys/net/ipv4/ip_forward")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1"
    assert (rootfs / "tmp/vpc-cni").read_bytes() == (rootfs / plugin[1:]).read_bytes()  # not the interpreted one


def test_the_machine_is_left_as_it_was() -> None:
    """What is registered for a command is so in its own namespace only, and a failing command's status is its own."""
    before = sorted(path.name for path in BINFMT.iterdir())
    seen = subprocess.run([*FOREIGN, "sh", "-c", f"ls {BINFMT}; id -u; exit 7"], capture_output=True, text=True, check=False)
    assert seen.returncode == 7, seen.stderr
    assert "qemu-aarch64" in seen.stdout.split()
    assert seen.stdout.split()[-1] == "0"
    assert sorted(path.name for path in BINFMT.iterdir()) == before


@whole
def test_two_builds_are_the_same(archive: Archive) -> None:
    """The same digest, so the same bytes."""
    _image("build", ARCH="arm64")
    assert Archive(IMAGE / "vpc-ipamd-arm64.tar").digest == archive.digest


@whole
def test_it_differs_from_the_other_image_only_where_it_must(archive: Archive, other: Path) -> None:
    """Compiled files, what lists or licenses them, and nothing else that we add: bytecode and the interpreted plugin are the same."""
    ours, others = (
        {path: line for path, line in lines_of(each).items() if path.startswith("/opt/")} for each in (archive, Archive(other))
    )
    differing = {path for path in {*ours, *others} if ours.get(path) != others.get(path)}
    plugins = r"/opt/vpc-ipamd/(vpc-cni|vpc-cni\.licences|plugins/(loopback|portmap|bandwidth|tuning|SHA256SUMS))"
    compiled = r".*\.so|.*/(grpcio|protobuf|pyyaml|sqlalchemy)-[0-9.]+\.dist-info/(RECORD|WHEEL)"
    assert {path for path in differing if not re.fullmatch(f"{plugins}|{compiled}", path)} == set()
    assert sum(path.endswith(".pyc") for path in ours) > 1000


@whole
def test_both_under_one_name(archive: Archive, other: Path, tmp_path: Path) -> None:
    """The commands of docs/install.md, on a store and a registry of the test's own: a node finds its architecture's image."""
    store = ["buildah", "--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]
    page = (ROOT / "docs" / "install.md").read_text()
    commands = [shlex.split(line)[2:] for line in page.splitlines() if line.strip().startswith("$ buildah manifest ")]
    assert [words[1] for words in commands] == ["create", "add", "add", "push"]
    for words in commands:
        argv = [word.replace("docker://REGISTRY/vpc-ipamd:0.1.0", f"oci:{tmp_path}/pushed:0.1.0") for word in words]
        done = subprocess.run([*store, *argv], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    (top,) = json.loads((tmp_path / "pushed" / "index.json").read_text())["manifests"]
    index = json.loads((tmp_path / "pushed/blobs" / top["digest"].replace(":", "/")).read_text())
    found = {each["platform"]["architecture"]: each["digest"] for each in index["manifests"]}
    assert found["amd64"] == Archive(other).digest
    assert found["arm64"] == archive.digest


@whole
def test_bill_of_materials(archive: Archive) -> None:
    """It is beside the other architecture's, and its Debian packages are arm64's."""
    assert archive.config["architecture"] == "arm64"
    bom = json.loads((ROOT / "build" / "sbom-arm64.json").read_text())
    architectures = {match[1] for part in bom["components"] if (match := re.search(r"\?arch=(\w+)", part["purl"]))}
    assert architectures == {"arm64", "all"}


@needs("qemu-system-aarch64", "cpio", "depmod")
def test_a_whole_machine(archive: Archive, out: Path) -> None:
    """On an arm64 kernel the image's daemon becomes ready, wires two sandboxes that packets reach, and leaves nothing behind."""
    assert archive.config["architecture"] == "arm64"
    command = [ROOT / "tools" / "arm64_machine.sh", ROOT / "tests" / "heavy" / "on_arm64.py", out / "vpc-ipamd-arm64.tar"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "DEL of both leaves nothing" in done.stdout
