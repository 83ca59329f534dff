"""Ask EC2 for this node's ENIs while the daemon still imports its modules and opens its datastore.

A cold start asks EC2 for three things one after the other, and the daemon needs 0.3 s before it can ask for the first. So a thread
asks for that one as soon as this daemon has the instance lock, when no other daemon of ours changes anything at EC2 any more. The
first comparison with EC2 gets the answer (`Ec2Child.ask_early`). An answer of EC2 that is a second old is like one that lags, for
which all comparisons allow (`ipamd/eni/book.py`). If metadata or EC2 does not answer, the cloud loop asks and reports as usual.
"""

from __future__ import annotations

import logging
import threading

from ipamd.cloud.child import Ec2Child, Process
from ipamd.cloud.ec2 import first_page_of_instance
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.core.deadline import SystemClock
from ipamd.model.errors import log_text
from ipamd.model.record import dataclass
from ipamd.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CloudAdapters:
    """The adapters that may have been asked before the others are made."""

    metadata: ImdsMetadata
    ec2_client: Ec2Child


def cloud_adapters(settings: Settings, *, process: Process | None = None) -> CloudAdapters:
    """Make them. `process`: the child process for calls to EC2, if it was started already. Raises: SettingsError."""
    metadata = ImdsMetadata(settings.cloud, clock=SystemClock(), family=settings.network.family)
    return CloudAdapters(metadata, Ec2Child(settings.cloud, process=process))


def begin(settings: Settings, process: Process | None) -> CloudAdapters:
    """Make the adapters, and start the thread that asks. If it cannot be started, nothing is asked early. `process`, errors: see
    `cloud_adapters`.
    """
    cloud = cloud_adapters(settings, process=process)
    try:
        threading.Thread(target=_ask, args=[cloud.metadata, cloud.ec2_client], name="early question", daemon=True).start()
    except RuntimeError:
        log.debug("no thread for the early question")
    return cloud


def _ask(metadata: ImdsMetadata, client: Ec2Child) -> None:
    try:
        identity = metadata.identity()
        api, params = first_page_of_instance(identity.instance_id, vpc_id=identity.vpc_id)
        client.ask_early(api, params, region=identity.region)
    except Exception as error:  # noqa: BLE001  # any failure: the cloud loop asks the same again
        log.debug("no early question error=%s", log_text(error))
