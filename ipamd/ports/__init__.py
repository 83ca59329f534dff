"""The seams between use cases and the outside world: what `service` may ask of disk, kernel, cloud and runtime.

Services take these Protocols as arguments; only `adapters.py` knows who implements them. Fakes in `tests/fakes` implement
the same Protocols and pass the same contract tests as the adapters. All implementations are safe to call from any thread.
There is no code in here, only promises.
"""

from ipamd.ports.aws_node import AwsNode, Import
from ipamd.ports.cloud import Ec2, Metadata
from ipamd.ports.datastore import Datastore, Spool, SpoolEntry, UnitOfWork
from ipamd.ports.history import History, NoHistory
from ipamd.ports.kernel import HostNetwork, Wiring
from ipamd.ports.process import Clock, Failpoint, no_failpoint
from ipamd.ports.runtime import Runtime

__all__ = [
    "AwsNode",
    "Clock",
    "Datastore",
    "Ec2",
    "Failpoint",
    "History",
    "HostNetwork",
    "Import",
    "Metadata",
    "NoHistory",
    "Runtime",
    "Spool",
    "SpoolEntry",
    "UnitOfWork",
    "Wiring",
    "no_failpoint",
]
