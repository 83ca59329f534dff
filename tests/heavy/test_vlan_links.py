"""VLAN links of a real kernel, made, repaired and removed by our own messages: the lab's kernel may have none, and uses a stand-in.

Debian's cloud kernel in QEMU, without KVM, with this interpreter and this checkout in its memory: some 30 s.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.heavy.tools import ROOT, VLAN_KERNEL, needs

pytestmark = needs("qemu-system-x86_64", "cpio", "vlan kernel")

MODULES = ("net/llc/llc", "net/802/stp", "net/802/garp", "net/802/mrp", "net/8021q/8021q", "drivers/net/veth")
LEFT_OUT = (
    "dist-packages",
    "site-packages",
    "test",
    "idlelib",
    "tkinter",
    "lib2to3",
    "ensurepip",
    "pydoc_data",
    "config-*",
    "turtle*",
)
BOOT_TIMEOUT_S = 300


def libraries(*programs: Path) -> set[Path]:
    """What the loader adds to programs."""
    shown = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False, timeout=120).stdout
    return {Path(word) for line in shown.splitlines() for word in line.split() if word.startswith("/") and not word.endswith(":")}


def root_of_machine(root: Path) -> None:
    """The machine's files: the interpreter, this checkout, the modules, and the program as its first process."""
    interpreter, standard = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard, root / standard.relative_to("/"), ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=False)
    extensions = (root / standard.relative_to("/") / "lib-dynload").glob("*.so")
    for path in {interpreter, *libraries(interpreter, *extensions)}:
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    shutil.copytree(ROOT / "ipamd", root / "checkout" / "ipamd", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("proc", "sys", "dev", "modules"):
        (root / folder).mkdir()
    (kernel,) = (VLAN_KERNEL / "lib" / "modules").iterdir()
    for module in MODULES:
        shutil.copy(kernel / "kernel" / f"{module}.ko", root / "modules")
    program = (ROOT / "tests" / "heavy" / "on_vlan_machine.py").read_text(encoding="utf-8")
    init = root / "init"
    init.write_text(f"#!{interpreter} -B\nimport sys\nsys.path.insert(0, '/checkout')\nexec({program!r})\n", encoding="utf-8")
    init.chmod(0o755)


def test_our_messages_and_a_real_kernel(tmp_path: Path) -> None:
    """Made, EEXIST, replaced, down with the trunk and back, gone by group, impostors, gone with the trunk: in both families."""
    root, image = tmp_path / "root", tmp_path / "initrd"
    root.mkdir()
    root_of_machine(root)
    listed = subprocess.run(["find", ".", "-print0"], cwd=root, capture_output=True, check=True, timeout=120).stdout
    with image.open("wb") as file:
        command = ["cpio", "--null", "--create", "--format=newc", "--quiet"]
        subprocess.run(command, cwd=root, input=listed, stdout=file, check=True, timeout=120)
    (kernel,) = (VLAN_KERNEL / "boot").glob("vmlinuz-*")
    arguments = ["-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "1024", "-display", "none", "-nodefaults", "-serial", "stdio"]
    machine = [
        "-no-reboot",
        "-kernel",
        str(kernel),
        "-initrd",
        str(image),
        "-append",
        "console=ttyS0 quiet panic=-1 rdinit=/init",
    ]
    done = subprocess.run(
        ["qemu-system-x86_64", *arguments, *machine],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=BOOT_TIMEOUT_S, check=False,
    )  # fmt: skip
    said = [line.strip() for line in done.stdout.splitlines()]
    assert "the program ended well" in said, done.stdout + done.stderr
    assert len([line for line in said if line.startswith("held: ip: ")]) == 6
    assert len([line for line in said if line.startswith("held: ip6: ")]) == 6
