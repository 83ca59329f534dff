"""Where the trimmed AWS data is, whether it may be used, and a botocore loader that reads it.

botocore describes EC2 in 4.3 MB of JSON, of which we call ten operations; holding it all is what makes a client cost tens of
megabytes. `trim_model.py` writes what we need into `data/` at build time; nothing of botocore is committed. Data of another
botocore than the installed one is never used: a parser and its model belong together. Imports botocore inside functions only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.loaders import Loader

DATA_DIR = Path(__file__).with_name("data")

MANIFEST = "manifest.json"
"""Written last, so that its presence means the rest is complete."""

REMAKE = "run `python -m ipamd.cloud.trim_model` (make setup does)"


def why_unusable(directory: Path, *, operations: frozenset[str]) -> str:
    """Say why trimmed data cannot be used; an empty string if it can.

    Args:
        directory: what `trim_model` wrote, or should have written.
        operations: EC2 APIs that the data must hold.
    """
    import botocore

    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        made_from, held = manifest["botocore"], frozenset(manifest["operations"])
    except FileNotFoundError:
        return f"there is no trimmed model in {directory}: {REMAKE}"
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return f"{directory / MANIFEST} cannot be read ({exc}): {REMAKE}"
    if made_from != botocore.__version__:
        return f"the trimmed model is of botocore {made_from}, installed is {botocore.__version__}: {REMAKE}"
    missing = sorted(operations - held)
    return f"the trimmed model lacks {', '.join(missing)}: {REMAKE}" if missing else ""


def trimmed_loader(directory: Path) -> Loader:
    """Make a loader that sees the trimmed data alone.

    It counts as botocore's own data, or else botocore would resolve endpoints by its legacy rules.
    """
    from botocore.loaders import Loader

    loader = Loader(extra_search_paths=[str(directory)], include_default_search_paths=False)
    loader.BUILTIN_DATA_PATH = str(directory)
    return loader
