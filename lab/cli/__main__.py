"""`python -m lab.cli`: the same as `vpc-lab`."""

from __future__ import annotations

import sys

from lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
