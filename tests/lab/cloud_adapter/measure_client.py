"""Print what an EC2 client costs: seconds and resident memory of importing, building and one Describe.

    python -m tests.lab.cloud_adapter.measure_client trimmed|whole|boto3

Each variant needs a process of its own. `boto3` builds what one would without this package, for comparison. The lab's EC2 runs
in a process of its own, so that its memory is not counted.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SERVER = """
import sys
from lab.vpc.state import Vpc
from lab.ec2.server import Ec2Server
with Vpc() as vpc:
    subnet = vpc.add_subnet("10.0.0.0/24")
    instance = vpc.add_instance(name="node", subnet_id=subnet.subnet_id)
    with Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as ec2:
        print(ec2.url, instance.instance_id, flush=True)
        sys.stdin.read()
"""


def resident_mib(field: str = "VmRSS") -> float:
    """Resident memory of this process; the most it ever was with VmHWM."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure(variant: str, url: str, instance_id: str) -> str:
    """Run one variant in this process."""
    began, before = time.perf_counter(), resident_mib()
    if variant == "boto3":
        import boto3

        client = boto3.session.Session(region_name="us-west-2").client("ec2", endpoint_url=url)
        client.describe_network_interfaces(Filters=[{"Name": "attachment.instance-id", "Values": [instance_id]}])
    else:
        from ipamd.cloud.client import Ec2Client
        from ipamd.cloud.ec2 import BotoEc2
        from ipamd.cloud.trimmed_model import DATA_DIR
        from ipamd.model.ids import InstanceId
        from ipamd.settings import CloudConfig
        from tests.unit.cloud.clocks import RealClock

        directory = DATA_DIR if variant == "trimmed" else Path("/nonexistent")
        config = CloudConfig(ec2_endpoint=url)
        client = Ec2Client(config, region=lambda: "us-west-2", model_dir=directory)
        ec2 = BotoEc2(config, region=str, clock=RealClock(), client=client)
        imported_s, imported_mib = time.perf_counter() - began, resident_mib() - before
        assert "botocore" not in sys.modules
        assert len(ec2.describe_enis(InstanceId(instance_id))) == 1
        sys.stdout.write(f"adapter imported: {imported_s:.3f} s, {imported_mib:.1f} MiB; ")
    took_s = time.perf_counter() - began
    grown = f"{resident_mib() - before:.1f} MiB (process {resident_mib():.1f}, peak {resident_mib('VmHWM'):.1f})"
    return f"{variant}: first answer after {took_s:.3f} s, {grown}\n"


def main() -> None:
    """Start the lab's EC2, measure, stop it."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url, instance_id = server.stdout.readline().split()
        sys.stdout.write(measure(sys.argv[1], url, instance_id))
        server.terminate()


if __name__ == "__main__":
    main()
