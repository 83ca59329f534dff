"""Former names of settings, with their present names (I15). Some former names lacked the prefix VPC_IPAMD_, others the unit or kind of
the value (`_SECONDS`, `_FILE`).

Without this table a former name without the prefix, such as MAX_PODS, would be ignored. A former name with the prefix would be refused
with the advice to use the present name that is spelt most like it, and that may be the name of another setting.
"""

from __future__ import annotations

from typing import Final

FORMER_NAMES: Final = {
    "CRI_EVENTS": "VPC_IPAMD_CRI_EVENTS",
    "CRI_SOCKET": "VPC_IPAMD_CRI_SOCKET",
    "ENABLE_PORTMAP_PLUGIN": "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN",
    "MAX_PODS": "VPC_IPAMD_MAX_PODS",
    "WARM_TARGET": "VPC_IPAMD_WARM_TARGET_MODE",
    "VPC_IPAMD_AWS_NODE_CONFLIST": "VPC_IPAMD_AWS_NODE_CONFLIST_FILE",
    "VPC_IPAMD_AWS_NODE_EGRESS": "VPC_IPAMD_AWS_NODE_EGRESS_DIR",
    "VPC_IPAMD_CONFLIST": "VPC_IPAMD_CONFLIST_FILE",
    "VPC_IPAMD_DRAIN": "VPC_IPAMD_DRAIN_SECONDS",
    "VPC_IPAMD_FOREIGN_LINKS": "VPC_IPAMD_FOREIGN_LINK_POLICY",
    "VPC_IPAMD_HISTORY_BYTES": "VPC_IPAMD_HISTORY_MAX_BYTES",
    "VPC_IPAMD_MAX_RPCS": "VPC_IPAMD_MAX_CONCURRENT_REQUESTS",
    "VPC_IPAMD_POD_FACTS": "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE",
    "VPC_IPAMD_REFERENCE_PLUGINS": "VPC_IPAMD_REFERENCE_PLUGINS_DIR",
    "VPC_IPAMD_RELEASE_HOLD": "VPC_IPAMD_RELEASE_HOLD_SECONDS",
    "VPC_IPAMD_RELOAD_SPREAD": "VPC_IPAMD_RELOAD_JITTER_SECONDS",
    "VPC_IPAMD_SPARE_ENI_DELAY": "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS",
}
"""Former name to present name. CHANGELOG.md has the renaming. A row stays as long as a manifest with the former name may be in use."""
