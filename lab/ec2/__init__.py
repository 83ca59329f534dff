"""The EC2 query API of the simulated VPC, over real HTTP."""

from lab.ec2.server import Ec2Server

__all__ = ["Ec2Server"]
