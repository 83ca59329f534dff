"""The sentences of `ipamctl explain` about the legs of a sandbox, and about addresses that only extra legs have."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.family import IPV4, Family, IpAddress, family_of
from ipamd.model.legs.branch_eni import Branch, branch_of
from ipamd.model.pod_snat import PodSnat
from ipamd.model.pod_snat_choice import PodSnatChoice
from ipamd.model.words import counted

SNAT_MEANINGS = {
    PodSnat.NONE: "chose SNAT none at its ADD, so outside the VPC its packets have its own address",
    PodSnat.FORCE: "chose SNAT force at its ADD, so outside the VPC its packets have the node's address",
}
"""The sentence for each choice of SNAT by pod, without what chose it."""

OLDER_THAN_SETTING = "this pod was added before the present value of {setting}: delete it so that the setting applies"
"""The sentence about a pod that runs and has the choice of an earlier value of a setting."""


RELEASED_AT_DEL = "given back to EC2 at its DEL"


def explain_legs(attachment: Attachment, choice: PodSnatChoice) -> list[str]:
    """Explain the special properties of a sandbox. Returns: [] if it has none of them.

    These are a branch ENI, an address for egress in the IP family that is not the pool's, a choice of SNAT by its pod, and an address
    that its pod asked for.
    `choice`: the settings in force that choose SNAT.
    """
    sentences = []
    if not attachment.is_of_pool:
        sentences.append(_explain_branch(attachment, branch_of(attachment)))
    if attachment.other_address is not None:
        ifname = family_of(attachment.other_address).local_range.ifname
        sentences.append(f"for egress of the other family it has {attachment.other_address} on {ifname}")
    if attachment.snat is not None:
        sentences.append(f"{choice.chooser_of(attachment)} {SNAT_MEANINGS[attachment.snat]}")
    setting = choice.outdated_setting(attachment)
    if setting:
        sentences.append(OLDER_THAN_SETTING.format(setting=setting))
    if attachment.kept_s is not None:
        until = f"kept for its pod for {attachment.kept_s} s after its DEL" if attachment.kept_s else RELEASED_AT_DEL
        sentences.append(f"the pod asked for this address: it is {until}")
    return sentences


def setting_of_extra_legs(family: Family) -> str:
    """Return the name of the setting that gives pods egress in `family`, the IP family that the pool does not have."""
    if family is IPV4:
        return "ENABLE_V4_EGRESS"
    return "ENABLE_V6_EGRESS"


def explain_trunk(trunk: str, *, uplinked_count: int) -> str:
    """Explain the trunk ENI. `uplinked_count`: the number of sandboxes that have an uplink."""
    return f"{trunk} is this node's trunk ENI, which carries {counted(uplinked_count, 'branch ENI')} of sandboxes"


def explain_local_range(address: IpAddress) -> str:
    """Explain an address of the range that is valid on this node only; "" for any other address."""
    local_range = family_of(address).local_range
    if address not in local_range.network:
        return ""
    return (
        f"{address} is in {local_range.network}, for egress by {local_range.ifname}: it is valid on this node only, and packets that "
        "leave the node have the node's address instead"
    )


def _explain_branch(attachment: Attachment, branch: Branch) -> str:
    """Explain the branch ENI of a sandbox, and whether EC2 confirms it."""
    mode = EnforcingMode.STANDARD
    if branch.is_strict:
        mode = EnforcingMode.STRICT
    if attachment.contradiction is None:
        opinion = "EC2 has not been asked"
    elif attachment.contradiction == "":
        opinion = "EC2 agrees"
    elif attachment.is_unconfirmed:
        opinion = attachment.contradiction
    else:
        opinion = f"EC2 contradicts: {attachment.objection}"
    consequence = ""
    if attachment.must_be_cut_off:
        consequence = ", so it has no network until EC2 agrees"
    return f"that ENI is its branch ENI: {mode}, MAC {branch.mac}, link {branch.link}; {opinion}{consequence}"
