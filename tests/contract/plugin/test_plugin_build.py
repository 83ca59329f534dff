"""The one file that is installed: small start-up, no surprises, any interpreter; and sources that both runtimes can read."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cni_plugin import build as plugin_build

PACKAGE = Path(plugin_build.__file__).parent
SOURCES = [PACKAGE / f"{name}.py" for name in plugin_build.MODULES]
CARRIED = [path for path in SOURCES if path.stem != "_cni"]  # read by MicroPython too; _cni is a C module there

# What a bare interpreter started with -I -S has loaded (3.9 to 3.13), so that only the rest is ours.
BARE = {
    *("__main__", "_abc", "_bootlocale", "_codecs", "_frozen_importlib", "_frozen_importlib_external", "_imp", "_io", "_signal"),
    *("_thread", "_warnings", "_weakref", "abc", "builtins", "codecs", "encodings", "encodings.aliases", "encodings.ascii"),
    *("encodings.latin_1", "encodings.utf_8", "io", "marshal", "posix", "sys", "time", "zipimport"),
}
ALLOWED = {"_socket", "select", "binascii", "errno"}


def has_python(version: str) -> str | None:
    """An interpreter of this version that can be started, or None."""
    for candidate in (
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")),
    ):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def loaded_modules(file: Path, environment: dict[str, str]) -> set[str]:
    """Run the built file as Python does, without leaving at its end, and list sys.modules afterwards."""
    interpreter = file.read_text(errors="replace").split("\n", 1)[0][2:].split(" ")[0]
    script = (
        "import posix, sys\n"
        "def leave(status): posix.write(2, ' '.join(sys.modules).encode()); posix._exit_(status)\n"
        "posix._exit_, posix._exit = posix._exit, leave\n"
        f"file = {str(file)!r}\n"
        "exec(compile(open(file).read(), file, 'exec'), {'__name__': '__main__', '__file__': file})"
    )
    finished = subprocess.run(
        [interpreter, "-I", "-S", "-c", script],
        env=environment,
        input=b"{}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return set(finished.stderr.decode().split(" "))


@pytest.mark.parametrize("interpreter", ["debian", "tests"])
def test_only_an_allow_list_of_modules_is_imported(built, interpreted, daemon, interpreter):
    """Start-up stays within its budget because nothing is imported that is not needed (docs/adr/0003)."""
    ours = {f"cni_plugin.{name}" for name in plugin_build.MODULES} | {"cni_plugin"}
    if interpreter not in built:
        pytest.skip("not installed")
    loaded = loaded_modules(built[interpreter], interpreted.environment("ADD"))
    assert loaded - BARE - ALLOWED - ours == set()
    assert daemon.requests


def test_spooling_needs_one_module_more(built, interpreted, spooled):
    """Also the rare path imports next to nothing."""
    loaded = loaded_modules(built["tests"], interpreted.environment("DEL"))
    assert {name for name in loaded - BARE - ALLOWED if not name.startswith("cni_plugin")} == {"fcntl"}
    assert len(spooled()) == 1


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_other_interpreters_run_the_same_file(built, interpreted, daemon, tmp_path, version):
    """After an upgrade of the node's Python the file still works: it falls back to its own sources."""
    interpreter = has_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    data = next(iter(built.values())).read_bytes()
    file = tmp_path / "vpc-cni"
    file.write_bytes(b"#!" + interpreter.encode() + b" -IS\n" + data.split(b"\n", 1)[1])
    file.chmod(0o755)
    interpreted.argv = [str(file)]
    assert interpreted.run("ADD").status == 0
    assert interpreted.run("VERSION").document()["cniVersion"] == "1.0.0"
    daemon.abort = None
    interpreted.run("ADD", CNI_IFNAME="").error(4)
    plugin_build.build(Path(interpreter), file)  # and built for it
    assert interpreted.run("ADD").status == 0


def test_matching_bytecode_is_used(built, interpreted, daemon, tmp_path):
    """With the interpreter it was built for, nothing is compiled: the sources in the file may be garbage."""
    data = next(iter(built.values())).read_bytes()
    head, _, codes = data.rsplit(b"\n#", 2)
    interpreted.argv = [str(tmp_path / "vpc-cni")]
    Path(interpreted.argv[0]).write_bytes(head + b"\n#garbage\n#" + codes)
    Path(interpreted.argv[0]).chmod(0o755)
    assert interpreted.run("ADD").status == 0


@pytest.mark.parametrize("python", ["python3", "/usr/bin/with space/python3", "/" + "x" * 130])
def test_an_interpreter_that_cannot_stand_in_the_first_line_is_refused(tmp_path, python):
    """The first line is absolute, without spaces, and within what kernels read."""
    with pytest.raises(ValueError, match="absolute"):
        plugin_build.build(Path(python), tmp_path / "vpc-cni")


def test_the_build_is_atomic_and_repeatable(tmp_path):
    """The same sources give the same bytes; nothing temporary is left beside the file."""
    outputs = [tmp_path / name / "vpc-cni" for name in ("a", "b")]
    for output in outputs:
        plugin_build.build(Path(sys.executable), output)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert [os.listdir(output.parent) for output in outputs] == [["vpc-cni"]] * 2


def test_the_development_entry_point_works(interpreted, daemon):
    """`python -m cni_plugin.vpc_cni` serves without a build."""
    interpreted.argv = [sys.executable, "-m", "cni_plugin.vpc_cni"]
    interpreted.extra_environment = {"PYTHONPATH": str(PACKAGE.parent)}
    assert interpreted.run("ADD").status == 0


def test_the_measurement_runs(built):
    """The benchmark measures both in one run; its figures are for docs/adr/0003, not for a test."""
    specification = importlib.util.spec_from_file_location("plugin_exec", PACKAGE.parent / "bench" / "plugin_exec.py")
    assert specification is not None
    assert specification.loader is not None
    plugin_exec = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(plugin_exec)
    for responder in ("raw", "grpcio"):
        found = plugin_exec.measure_plugin(built["tests"], python=Path(sys.executable), responder=responder, rounds=3)
        assert set(found) == {"bare", "plugin"}
        assert min(found.values()) > 0


def test_nothing_of_the_daemon_is_imported():
    """cni_plugin imports only itself and, in the seam, extension modules of the interpreter."""
    allowed = {"cni_plugin", "sys"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or "relative"] if isinstance(node, ast.ImportFrom) else []
            extra = {"_cni": {"posix", "time", "_socket", "select", "fcntl"}, "vpc_cni": {"_cni"}}.get(path.stem, set())
            assert {name.split(".")[0] for name in names} <= allowed | extra, path.name


@pytest.mark.parametrize("path", CARRIED, ids=lambda path: path.stem)
def test_sources_keep_to_the_common_dialect(path):
    """No construct that MicroPython does not know: match, bytes %, del of slices, decode with an error handler, ..."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Match | ast.NamedExpr | ast.AsyncFunctionDef | ast.AnnAssign | ast.TryStar), ast.dump(
            node
        )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            assert not isinstance(node.left, ast.Constant), "formatting with %"
        if isinstance(node, ast.Delete):
            assert not any(isinstance(target, ast.Subscript) for target in node.targets)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_codec = node.func.attr in ("decode", "encode") and not isinstance(node.func.value, ast.Name | ast.Constant)
            assert not (is_codec and (node.args or node.keywords)), ast.dump(node)
            assert node.func.attr not in (
                "removeprefix",
                "removesuffix",
                "hex",
                "fromhex",
                "translate",
                "maketrans",
                "bit_length",
            )
            assert not (node.func.attr in ("to_bytes", "from_bytes") and node.keywords), "keywords of int methods"
