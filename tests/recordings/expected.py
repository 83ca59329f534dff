"""Which alerts each recording must raise, and no other; a steady state is repeated until three hours are over."""

from __future__ import annotations

EXTENDED_S = 3 * 3600
"""Longer than every `for:` with its window: two hours of differing metadata are the longest."""

NO_ADDRESS = "AddsFail AddsRefused"

EXPECTED: dict[str, str] = {
    "idle": "",
    "packed": "",
    "packed-to-max-pods": "",
    "churn": "",
    "burst": "",
    "rolls": "",
    "throttled-for-a-minute": "",
    "refused-once": "",
    "too-many-addresses": "",
    "target-changed": "",
    "repaired": "",
    "more-than-max-pods": NO_ADDRESS,
    "more-than-the-node": NO_ADDRESS,
    "subnet-full": f"{NO_ADDRESS} PoolEmpty SubnetsFull ConditionStays",
    "throttled": f"{NO_ADDRESS} PoolEmpty AddsSlow EcTwoThrottles ConditionStays",
    "denied": f"{NO_ADDRESS} PoolEmpty PoolBlocked EcTwoDenies ConditionStays",
    "denied-at-start": "NotReady EcTwoDenies ConditionStays",
    "denied-groups": "EcTwoDenies ConditionStays",
    "ec2-silent": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionStays",
    "ec2-slow": "",
    "wrong-setting": "Down",
    "crash-loop": "Restarts",
    "stopped": "Down",
    "settings-wrong": "SettingsRefused ConditionStays",
    "disk-full": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionStays",
    "runtime-gone": "RuntimeUnreachable ConditionStays",
    "frozen": "Frozen",
    "flooded": "MetricsPortFlooded",
    "quarantined": "QuarantineStays ConditionStays",
    "fight": "Fight ConditionStays",
    "firewall": "PodsCutOff ConditionStays",
    "conflist-refused": "PluginsMissing ConditionStays",
    "plugin-gone": "PluginsMissing ConditionStays",
    "eni-detached": "AddressesLost PodsCutOff ConditionStays",
    "metadata-differs": "MetadataDiffers ConditionStays",
    "given-twice": "GivenTwice",
    "idle-ipv6": "",
    "packed-prefixes": "",
    "jobs": "",
    "killed-once": "",
    "slow-growth": "",
    "busy": "AddsSlow",
    "runtime-restarts": "ConditionStays",
    "throttled-by-others": NO_ADDRESS,
    "throttled-at-rest": "",
    "denied-assign": f"{NO_ADDRESS} PoolEmpty PoolBlocked EcTwoDenies ConditionStays",
    "quota": f"{NO_ADDRESS} PoolEmpty PoolBlocked ConditionStays",
    "subnet-nearly-full": "SubnetsFull ConditionStays",
    "one-pod-filtered": "PodsCutOff ConditionStays",
    "fight-for-a-rule": "Fight PodsCutOff ConditionStays",
    "slow-crash-loop": "Restarts",
    "eni-deleted": "AddressesLost PodsCutOff ConditionStays",
    "throttled-for-five-minutes": NO_ADDRESS,
    "throttled-for-long": f"{NO_ADDRESS} PoolEmpty AddsSlow EcTwoThrottles ConditionStays",
    "extra-sources": "SourcesUnchecked",
    "confinement-taken": "SourcesUnchecked ConditionStays",
    "spool-stays": "SpoolStays ConditionStays",
    "operation-stuck": "OperationStuck",
    "egress-nearly-used-up": "EgressNearlyUsedUp",
    "two-links-with-one-address": "Defect ConditionStays",
    "packed-without-spare": "",
    "all-replaced": "",
    "other-conflist": "PluginsMissing ConditionStays",
    "default-route-gone": "PodsCutOff ConditionStays",
    "address-unassigned": "AddressesLost PodsCutOff ConditionStays",
    "ec2-fails": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionStays",
    "queries-filtered": "PodsCutOff ConditionStays",
    "metadata-silent": "MetadataDiffers",
    "short-lives": "Down Restarts",
    "eni-detached-while-away": "PodsCutOff ConditionStays",
    "undone-each-25-minutes": "Fight",
    "ends-each-15-minutes": "Restarts",
}
"""Recording -> alerts, without their common beginning. From idle-ipv6 on they were recorded when the rules stood."""


def alerts(name: str) -> frozenset[str]:
    """The alerts of a recording, by their names in the rules."""
    return frozenset(f"VpcIpamd{one}" for one in EXPECTED[name].split())
