"""The trimmed AWS service model: its place, whether it is usable, and a botocore loader for it.

botocore describes EC2 in 4.3 MB of JSON, of which we use a dozen operations; loading all of it costs a client tens of megabytes.
`trim_model.py` writes the needed part into `data/` at build time; nothing of botocore is committed. Data of another botocore
version is never used, because parser and model must match. botocore is imported inside functions only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.loaders import Loader


DATA_DIR = Path(__file__).with_name("data")

MANIFEST = "manifest.json"
"""Written last: if it exists, the other files are complete."""

REMAKE = "run `python -m ipamd.cloud.trim_model` (make setup does)"


def why_unusable(directory: Path, *, operations: frozenset[str]) -> str:
    """Return why the trimmed data cannot be used; an empty string if it can.

    Args:
        directory: where `trim_model` writes.
        operations: EC2 APIs that the data must hold.
    """
    import botocore

    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        made_from, trimmed_operations = manifest["botocore"], frozenset(manifest["operations"])
    except FileNotFoundError:
        return f"there is no trimmed model in {directory}: {REMAKE}"
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return f"{directory / MANIFEST} cannot be read ({exc}): {REMAKE}"
    if made_from != botocore.__version__:
        return f"the trimmed model is of botocore {made_from}, installed is {botocore.__version__}: {REMAKE}"
    missing = sorted(operations - trimmed_operations)
    if missing:
        return f"the trimmed model lacks {', '.join(missing)}: {REMAKE}"
    return ""


def trimmed_loader(directory: Path) -> Loader:
    """Make a loader that reads the trimmed data only.

    The data is declared as botocore's own, because botocore resolves endpoints of other data by legacy rules.
    """
    from botocore.loaders import Loader

    loader = Loader(extra_search_paths=[str(directory)], include_default_search_paths=False)
    loader.BUILTIN_DATA_PATH = str(directory)
    return loader
