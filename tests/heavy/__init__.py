"""What takes minutes or heavy tools: left out unless VPC_IPAMD_HEAVY=1, which `make test-all` sets."""
