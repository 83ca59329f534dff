"""Make `vpc-cni` as one interpreted file, for nodes and tests that have a CPython: `python -m cni_plugin.build`.

The file is a short Python script whose last two lines are comments: the modules' sources (without docstrings and annotations,
compressed), and their code marshalled for the interpreter in the first line. An interpreter with another bytecode magic number,
after an upgrade of the node, compiles the sources: slower, but it works. All is in one file, so that `rename` installs it atomically.
Rejected, with figures in docs/adr/0003: plain source, bytes literals, a zip, code in the `#!` line, a .pyc beside a launcher.
"""

from __future__ import annotations

import argparse
import ast
import base64
import subprocess
import sys
import zlib
from pathlib import Path

from cni_plugin.vpc_cni import PLUGIN_VERSION

# The modules of the plugin, in an order in which each imports only earlier ones. The plugin does not need `build` and `__init__`.
MODULES = ("errors", "cnijson", "envelope", "hpack", "h2", "client", "absence", "spool", "request", "_cni", "vpc_cni")
SHEBANG_BYTES_MAX = 127  # Linux before 5.1 reads only this many bytes of a `#!` line

_STUB = """\
#!{python} -IS
# vpc-cni {version}, built by cni_plugin.build for {python}. Do not edit: the two long comments below are the program.
import marshal
import posix
import sys
from binascii import a2b_base64


def load():
    fd = posix.open(__file__, posix.O_RDONLY | posix.O_CLOEXEC)
    parts = [posix.read(fd, {read_bytes})]
    while parts[-1]:
        parts.append(posix.read(fd, {read_bytes}))
    posix.close(fd)
    _, sources, codes = b"".join(parts).rsplit(b"\\n#", 2)
    loader = sys.modules.get("_frozen_importlib_external")
    if getattr(loader, "MAGIC_NUMBER", None) == {magic!r}:
        return marshal.loads(a2b_base64(codes))
    import zlib

    modules = zlib.decompress(a2b_base64(sources)).decode().split("\\0")
    return [(modules[i], compile(modules[i + 1], modules[i] + ".py", "exec")) for i in range(0, len(modules), 2)]


kind = type(sys)
package = sys.modules["cni_plugin"] = kind("cni_plugin")
package.__path__ = []
for name, code in load():
    module = sys.modules["cni_plugin." + name] = kind("cni_plugin." + name)
    setattr(package, name, module)
    exec(code, module.__dict__)
module.main()
"""

_COMPILE = """
import importlib.util, marshal, sys
modules = sys.stdin.buffer.read().decode().split("\\0")
codes = [(n, compile(s, n + ".py", "exec", optimize=2)) for n, s in zip(modules[::2], modules[1::2])]
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + marshal.dumps(codes))
"""


def build(python: Path, output: Path) -> None:
    """Write an executable `vpc-cni` to `output`, atomically.

    `python`: absolute path of the interpreter, which must be the same on this machine and on the node.
    Raises: ValueError if the path does not fit into a `#!` line; CalledProcessError if the interpreter cannot compile the sources.
    """
    if not python.is_absolute() or " " in str(python) or len(f"#!{python} -IS") > SHEBANG_BYTES_MAX:
        raise ValueError(f"{python}: must be absolute, without spaces, and short enough for a #! line")
    package = Path(__file__).parent
    names_and_sources = []
    for name in MODULES:
        names_and_sources += [name, _stripped((package / f"{name}.py").read_text())]
    sources = "\0".join(names_and_sources)
    compiled = subprocess.run(
        [str(python), "-I", "-S", "-c", _COMPILE], input=sources.encode(), stdout=subprocess.PIPE, check=True
    ).stdout
    magic, codes = compiled[:4], base64.b64encode(compiled[4:])
    stub = _STUB.format(python=python, version=PLUGIN_VERSION, magic=magic, read_bytes=1 << 20)
    packed = base64.b64encode(zlib.compress(sources.encode(), 9))
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    temporary.unlink(missing_ok=True)  # so that the write cannot follow a link of this name
    temporary.write_bytes(stub.encode() + b"\n#" + packed + b"\n#" + codes)
    temporary.chmod(0o755)
    temporary.rename(output)


def _stripped(source: str) -> str:
    """Remove the parts of a source that have no effect at run time: docstrings, annotations, and blocks for type checkers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_without_effect(part)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_without_effect(part: ast.stmt) -> bool:
    if isinstance(part, ast.If):
        return isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING"
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def main() -> None:
    """Entry point of `python -m cni_plugin.build`."""
    parser = argparse.ArgumentParser(prog="python -m cni_plugin.build", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"), help="interpreter on the node")
    parser.add_argument("--output", type=Path, default=Path("build/vpc-cni-interpreted"), help="file to write")
    arguments = parser.parse_args()
    try:
        build(arguments.python, arguments.output)
    except (ValueError, OSError, subprocess.CalledProcessError) as exc:
        sys.exit(f"cni_plugin.build: {exc}")


if __name__ == "__main__":
    main()
