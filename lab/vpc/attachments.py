"""The checks before an attachment, and the later completion of an accepted attachment or detachment.

An instance type limits its ENIs, and most Nitro types limit ENIs, volumes and NVMe instance stores together ("Amazon EBS volume limits
for Amazon EC2 instances"). It is not documented that EC2 refuses an ENI below the type's own limit because volumes have all slots. The
code AttachmentLimitExceeded is for "network interfaces or volumes" (EC2 "Error codes"; cilium 15877), so the lab refuses with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.vpc import errors
from lab.vpc.faults import AttachFault, Faults
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import AttachmentStatus, Eni, EniAttachment
from lab.vpc.rules import AttachCheck
from lab.vpc.store import Transaction
from lab.vpc.world import World


def check_attachable(
    world: World, eni: Eni, instance_id: str, *, place: tuple[int, int], limits: Mapping[str, InstanceLimits], faults: Faults
) -> None:
    """Check an attachment. `place`: network card and device index. Raises: Ec2Error if EC2 refuses it."""
    card, device_index = place
    instance = world.instance(instance_id)
    if not instance.running:
        raise errors.Ec2Error("IncorrectInstanceState", f"Instance '{instance_id}' is not in a valid state")
    bound = [other.attachment for other in world.attached_to(instance_id)]
    on_card = [at for at in bound if at is not None and at.network_card == card]
    is_taken = any(at.device_index == device_index for at in on_card)
    if eni.attachment is not None and not (is_taken and faults.rules.attach_check is AttachCheck.PLACE_FIRST):
        raise errors.interface_in_use(eni.eni_id)
    if eni.az != instance.az:
        raise errors.invalid_combination(
            "You may not attach a network interface to an instance if they are not in the same availability zone"
        )
    limit = limits[instance.instance_type]
    if not 0 <= card < len(limit.enis_per_card):
        raise errors.invalid_value(f"Network card index {card} does not exist on {instance.instance_type}")
    if device_index < 0 or is_taken:
        raise errors.device_index_taken(instance_id, device_index)
    if len(on_card) + 1 > limit.enis_per_card[card]:
        raise errors.attachment_limit(len(on_card) + 1, instance.instance_type)
    slots_taken = len(bound) + faults.volume_count(instance.name)
    if limit.shared_slots is not None and slots_taken + 1 > limit.shared_slots:
        raise errors.attachment_limit(len(bound) + 1, instance.instance_type)
    if len(eni.addresses) + len(eni.prefixes) > limit.addresses_per_eni:
        raise errors.address_limit()


def by_attachment(world: World, attachment_id: str) -> tuple[Eni, EniAttachment]:
    """Find the ENI of an attachment. Raises: Ec2Error if there is no such attachment."""
    for eni in world.enis.values():
        if eni.attachment is not None and eni.attachment.attachment_id == attachment_id:
            return eni, eni.attachment
    raise errors.attachment_not_found(attachment_id)


def finish_attach(tx: Transaction, eni_id: str, attachment_id: str, fault: AttachFault | None) -> None:
    """Complete an accepted attachment: the ENI becomes attached. If a fault says so, the attachment vanishes instead."""
    eni = tx.world.enis.get(eni_id)
    if eni is None or eni.attachment is None or eni.attachment.attachment_id != attachment_id:
        return
    if fault is not None and fault.vanishes:
        tx.put_eni(replace(eni, attachment=None))
    else:
        tx.put_eni(replace(eni, attachment=replace(eni.attachment, status=AttachmentStatus.ATTACHED)))


def finish_detach(tx: Transaction, eni_id: str, attachment_id: str) -> None:
    """Complete a detachment: remove the ENI's attachment."""
    tx.api = "DetachNetworkInterface"
    eni = tx.world.enis.get(eni_id)
    if eni is not None and eni.attachment is not None and eni.attachment.attachment_id == attachment_id:
        tx.put_eni(replace(eni, attachment=None))
