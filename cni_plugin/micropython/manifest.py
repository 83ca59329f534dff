"""List the sources that are frozen, unchanged, into the static plugin.

MicroPython's tools/makemanifest.py runs this file, with this directory as the working directory.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd().parents[1]))
from cni_plugin.build import MODULES  # noqa: E402 (the path has to come first)

FROZEN = [f"{name}.py" for name in ("__init__", *MODULES) if name != "_cni"]  # here `_cni` is modcni.c
package("cni_plugin", files=FROZEN, base_path="$(PORT_DIR)/../..")  # type: ignore[name-defined]  # noqa: F821 (makemanifest's own)
