"""vpc-ipamd: a node-local IP address manager for Amazon VPC pods."""

__version__ = "0.1.0"
