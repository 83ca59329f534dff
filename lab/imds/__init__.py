"""Instance metadata (IMDSv2) of the simulated VPC, over real HTTP, one server per instance."""

from lab.imds.server import ImdsServer

__all__ = ["ImdsServer"]
