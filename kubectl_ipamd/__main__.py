"""`python -m kubectl_ipamd`, from a checkout."""

import sys

from kubectl_ipamd.command import main

sys.exit(main())
