"""What takes minutes or heavy tools: skipped, and named, unless VPC_IPAMD_HEAVY=1, which `make test-all` sets."""
