"""What a call must pass before it is looked at: permission, whether EC2 has heard of what it names, and how a list is asked for."""

from __future__ import annotations

from lab.ec2.query import Params
from lab.vpc import errors
from lab.vpc.account import DEEP_FILTERS, LargeAccount
from lab.vpc.errors import Ec2Error
from lab.vpc.iam import Request, refusal
from lab.vpc.model import Eni
from lab.vpc.state import Vpc

_TAG_LISTS = {"CreateTags": "Tag", "DeleteTags": "Tag"}


def is_bare(params: Params) -> bool:
    """Whether a Describe names neither IDs nor filters nor a page."""
    return not params.structures("Filter") and not any("Id." in name or name == "MaxResults" for name in params.fields)


def check_permission(vpc: Vpc, api: str, params: Params, *, session: str) -> None:
    """Refuse what the instance's role may not do; tagging what is created is an action of its own."""
    denials = vpc.faults.conditions.iam
    if not denials:
        return
    tags = {key: value for entry in params.structures("TagSpecification") for key, value in entry.tags("Tag").items()}
    tags |= params.tags(_TAG_LISTS.get(api, "Tag"))
    eni = _eni(vpc, params)
    resource = f"network-interface/{eni.eni_id if eni else '*'}"
    resource = "*" if api.startswith(("Describe", "Get")) else resource
    requests = [Request(api, resource, tags, eni.tags if eni else {})]
    if api == "CreateNetworkInterface" and tags:
        requests.append(Request("CreateTags", resource, tags))
    for request in requests:
        refused = refusal(denials, request, region=vpc.region, session=session)
        if refused is not None:
            raise refused


def check_seen(vpc: Vpc, api: str, params: Params) -> None:
    """Say "not found" of an ENI or attachment that is too new for this API."""
    attachment_id = params.text("AttachmentId") or params.text("Attachment.AttachmentId")
    if attachment_id and vpc.faults.is_unseen(api, attachment_id):
        raise errors.attachment_not_found(attachment_id)
    single = params.text("NetworkInterfaceId")
    named = [*([single] if single else []), *params.texts("NetworkInterfaceId"), *params.texts("ResourceId")]
    for eni_id in named:
        if vpc.faults.is_unseen(api, eni_id):
            raise errors.interface_not_found([eni_id])


def check_large_account(account: LargeAccount | None, params: Params) -> None:
    """Refuse a list that a large account must page or filter deeply."""
    if account is None or params.texts("NetworkInterfaceId") or params.text("MaxResults"):
        return
    if not DEEP_FILTERS & {wanted.name for wanted in params.filters()}:
        raise Ec2Error(
            account.code,
            "The account has too many network interfaces for this request: use pagination or one of the filters "
            + ", ".join(sorted(DEEP_FILTERS)),
        )


def _eni(vpc: Vpc, params: Params) -> Eni | None:
    """Find the ENI that a call is about."""
    world = vpc.world
    named = params.text("NetworkInterfaceId") or next(iter(params.texts("ResourceId")), "")
    bond = params.text("AttachmentId") or ""
    of_bond = (eni for eni in world.enis.values() if eni.attachment is not None and eni.attachment.attachment_id == bond)
    return world.enis.get(named) or next(of_bond, None)
