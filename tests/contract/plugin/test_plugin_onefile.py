"""The static file of `make plugin`: it needs nothing of the node, looks at nothing it does not name, and is built repeatably."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from cni_plugin.build import MODULES
from lab.node.plugin import SOURCES
from tests.contract.plugin.marks import served

REPOSITORY = Path(__file__).parents[3]
PORT = REPOSITORY / "cni_plugin" / "micropython"
CHROOT, PRLIMIT = "/usr/sbin/chroot", "/usr/bin/prlimit"
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
# Documented: the CNI specification's, and the run directory (docs/settings.md).
VARIABLES = {
    *("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"),
    "VPC_IPAMD_RUN_DIR",
}


@pytest.fixture
def chroot(static_plugin, tmp_path):
    """Run the plugin where there is no file but itself: a function of verb, configuration and variables."""
    root = tmp_path / "root"
    root.mkdir()
    argv = [f"/{Path(file).name}" for file in static_plugin.argv]  # arm64: and QEMU, which is static too
    for file in static_plugin.argv:
        shutil.copy(file, root)

    def run(verb, config=b"", **variables):
        environment = {"CNI_COMMAND": verb, **variables}
        return (
            subprocess.run(  # by a program, not by a preexec_fn: a fork of this process, with gRPC's threads, may die on its way
                [CHROOT, str(root), *argv],
                env=environment,
                input=config,
                capture_output=True,
                check=False,
                timeout=120,
            )
        )

    return run


@pytest.mark.privileged
@NEEDS_ROOT
def test_it_runs_where_there_is_no_other_file(chroot):
    """No interpreter, no library, no /proc, no /dev: VERSION is answered, and CHECK says that the daemon is away."""
    answered = chroot("VERSION", b'{"cniVersion":"0.4.0"}')
    assert (answered.returncode, json.loads(answered.stdout)["cniVersion"], answered.stderr) == (0, "0.4.0", b"")
    away = chroot("CHECK", b'{"cniVersion":"1.0.0"}', CNI_CONTAINERID="a", CNI_IFNAME="eth0", CNI_NETNS="/n")
    assert (away.returncode, json.loads(away.stdout)["code"], away.stderr) == (1, 11, b"")


@pytest.mark.privileged
@NEEDS_ROOT
def test_a_del_is_kept_where_there_is_no_other_file(chroot, tmp_path):
    """The spool's directories and files are made by system calls alone (I3)."""
    kept = chroot("DEL", CNI_CONTAINERID="a", CNI_IFNAME="eth0", VPC_IPAMD_RUN_DIR="/run")
    assert (kept.returncode, kept.stderr) == (1, b"")
    assert json.loads(kept.stdout)["code"] == 7, "an empty configuration is not kept"
    kept = chroot("DEL", b"{}", CNI_CONTAINERID="a", CNI_IFNAME="eth0", VPC_IPAMD_RUN_DIR="/run")
    assert (kept.returncode, kept.stdout, kept.stderr) == (0, b"", b"")
    assert len(list((tmp_path / "root/run/spool").glob("del-*"))) == 1


def test_it_is_linked_statically(static_plugin):
    """No interpreter of the dynamic linker and no library is named in the file, and its stack is not executable."""
    shown = subprocess.run(["readelf", "--wide", "-l", "-d", static_plugin.argv[-1]], capture_output=True, text=True, check=True)
    assert "INTERP" not in shown.stdout
    assert "NEEDED" not in shown.stdout
    assert re.search(r"GNU_STACK.* RW ", shown.stdout)


def test_it_consults_no_path_and_no_variable_but_those_that_are_documented(onefile_plugin, daemon, tmp_path):
    """A call opens no file at all: beside standard input it looks at the run directory and the socket in it."""
    if shutil.which("strace") is None:
        pytest.skip("no strace here")
    trace = tmp_path / "trace"
    onefile_plugin.argv = ["strace", "-f", "-o", str(trace), "-e", "trace=%file,connect", *onefile_plugin.argv]
    assert onefile_plugin.run("ADD").status == 0
    calls = [line.split(" ", 1)[1].strip() for line in trace.read_text().splitlines() if "exited" not in line]
    assert calls[0].startswith("execve(")
    touched = [re.findall(r'"([^"]*)"', call)[0] for call in calls[1:]]
    run_dir = str(onefile_plugin.run_dir)
    assert touched == [run_dir, f"{run_dir}/ipamd.sock", f"{run_dir}/ipamd.sock"], calls


def test_the_variables_it_reads_are_those_that_are_documented():
    """The environment is read in one C function, for the names that the Python sources give it, and nowhere else."""
    c_sources = "".join(path.read_text() for path in PORT.glob("*.[ch]"))
    assert len(re.findall(r"\bgetenv\b|\benviron\b", c_sources)) == 1
    sources = "".join((REPOSITORY / "cni_plugin" / f"{name}.py").read_text() for name in MODULES)
    assert set(re.findall(r'"((?:CNI|VPC)_[A-Z_]+)"', sources)) == VARIABLES


def test_a_defect_of_the_interpreter_still_gives_a_document(onefile_plugin):
    """With too little memory there is a document of code 190, or the kernel cannot start it: never half an answer."""
    codes = set()
    for kilobytes in range(1200, 6400, 400):
        limit = kilobytes * 1024
        done = subprocess.run(
            [PRLIMIT, f"--as={limit}", *onefile_plugin.argv],
            env=onefile_plugin.environment("CHECK"),
            input=b'{"cniVersion":"1.0.0"}' + b" " * 900_000,
            capture_output=True,
            check=False,
            timeout=120,
        )
        if done.returncode < 0:
            continue  # the kernel could not map the file
        document = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (1, b"")
        codes.add(document["code"])
    assert codes == {190, 11}, "too little, and enough to find that there is no daemon"


@pytest.mark.parametrize("verb", ["DEL", "STATUS"])
def test_a_file_that_may_not_grow_still_gives_a_document(onefile_plugin, verb):
    """The kernel signals what RLIMIT_FSIZE refuses, and the signal ends a process: a DEL that cannot be kept says so (I3)."""
    served(onefile_plugin.run_dir)
    done = subprocess.run(
        [PRLIMIT, "--fsize=0", *onefile_plugin.argv],
        env=onefile_plugin.environment(verb),
        input=b'{"cniVersion":"1.1.0"}',
        capture_output=True,
        check=False,
        timeout=120,
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"]) == (1, {"DEL": 5, "STATUS": 50}[verb])


TEXTS = [
    *(b"", b"a", b"eth0", b"e%d", b"a b", b"..", b"/x", b"-", b"\x1b[2J"),
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xc3\xa4", b"\xf0\x9f\x98\x80"),
]
TOKENS = [b'"cniVersion"', b'"0.4.0"', *(bytes([byte]) for byte in b'{}[]:," \\\0\n'), *TEXTS, b"NaN", b'"\\ud800"']
RUN_DIRS = [b"/nowhere", b"/etc/passwd", b"/etc/passwd/x", b"/tmp", b"\xff", b"/\xed\xa0\x80", b"/\xc3\xa4"]


@pytest.mark.parametrize("seed", range(4))
def test_both_runtimes_give_the_same_document(onefile_plugin, interpreted, seed):
    """Whatever the runtime passes, the static file's answer is the interpreted plugin's, byte for byte."""
    random = Random(seed)
    for _ in range(40):
        variables = {
            "CNI_COMMAND": random.choice([b"CHECK", b"GC", b"STATUS", b"VERSION", b"\xff", b""]),
            "VPC_IPAMD_RUN_DIR": random.choice(RUN_DIRS),
            **{name: random.choice(TEXTS) for name in sorted(VARIABLES) if name.startswith("CNI_") and random.random() < 0.2},
        }
        config = b"{" + b"".join(random.choice(TOKENS) for _ in range(random.randrange(10))) + random.choice([b"}", b""])
        answers = [each.run("CHECK", config, **variables) for each in (onefile_plugin, interpreted)]
        static, reference = ((answer.status, answer.stdout, answer.stderr) for answer in answers)
        assert static == reference, (variables, config)


@pytest.mark.slow
@pytest.mark.heavy
def test_two_builds_give_the_same_bytes(onefile_plugin, tmp_path):
    """Nothing of the time, the folder or an earlier build is in the file: anybody can check which sources it was made of."""
    environment = {**os.environ, "OBJECTS": str(tmp_path / "objects")}
    again = tmp_path / "again"
    built = subprocess.run(
        [REPOSITORY / "tools" / "build_plugin.sh", again],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert built.returncode == 0, built.stderr
    assert again.read_bytes() == Path(onefile_plugin.argv[-1]).read_bytes()


def test_make_and_the_lab_know_the_same_sources():
    """What make takes for the file's sources is what the lab compares its age with."""
    (line,) = [line for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith("PLUGIN_SOURCES")]
    assert re.findall(r"cni_plugin\S*?\*(?:\.py)?", line) == list(SOURCES)
