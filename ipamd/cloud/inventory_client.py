"""The EC2 client of `vpc-ipamd-inventory`: its own operations, its own trimmed model, and room for long answers.

The daemon does not import this module, and uses its own client and its own trimmed model. The larger bound on the bytes of an answer
is set only on the HTTP session of this client. All other answers that botocore reads, such as credentials, keep the bound of
`bounded_http.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ipamd.cloud.bounded_http import BoundedResponse
from ipamd.cloud.client import Ec2Client
from ipamd.model.record import replace

if TYPE_CHECKING:
    from ipamd.settings import CloudConfig

INVENTORY_OPERATIONS: Mapping[str, str] = {
    "DescribeNetworkInterfaces": "describe_network_interfaces",
    "DescribeSubnets": "describe_subnets",
    "GetSubnetCidrReservations": "get_subnet_cidr_reservations",
}
"""API name -> method of a botocore client. None of them changes anything."""

INVENTORY_DATA_DIR = Path(__file__).with_name("inventory_data")

PAGE_BYTES_MAX = 64 << 20
"""The largest number of bytes of an answer that is read. Ours: ample, because a page of 1,000 ENIs with 50 addresses each has 9 MB in
the lab, whose answers are shorter than EC2's, and 50 tags of the longest kind on each ENI add 20 MB."""

PAGE_S = 60
"""The timeout of a whole answer is at least this, in seconds, even if HTTP_TIMEOUT is shorter. Ours: EC2 needs seconds for a page
of 1,000 ENIs, and nobody waits for this job."""


class InventoryClient(Ec2Client):
    """Makes the calls of the inventory. From any thread. Errors are those of `Ec2Client`."""

    operations: ClassVar[Mapping[str, str]] = INVENTORY_OPERATIONS

    def __init__(
        self,
        config: CloudConfig,
        *,
        region: Callable[[], str],
        model_dir: Path = INVENTORY_DATA_DIR,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        """`bytes_max`: longest answer of EC2, headers included."""
        patient = replace(config, http_timeout_s=max(config.http_timeout_s, PAGE_S))
        super().__init__(patient, region=region, model_dir=model_dir)
        self._bytes_max = bytes_max

    def _build(self) -> None:
        super()._build()
        bound_answers(self._client, self._bytes_max)


def bound_answers(client: Any, bytes_max: int) -> None:
    """Bound the answers that one botocore client reads, whatever the bound of the process is.

    botocore's session keeps its connection pools' classes in a dictionary of its own, for direct connections and for proxies.
    That dictionary gets subclasses. Source: botocore/httpsession.py, URLLib3Session.__init__ and _get_proxy_manager.
    """
    response = type("InventoryResponse", (BoundedResponse,), {"BYTES_MAX": bytes_max})
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in dict(pools).items():
        connection = type("InventoryConnection", (pool.ConnectionCls,), {"response_class": response})
        pools[scheme] = type("InventoryPool", (pool,), {"ConnectionCls": connection})
