"""Tests that need heavy Debian packages: `make test-all` installs them and sets VPC_IPAMD_HEAVY=1; else each file skips by name."""
