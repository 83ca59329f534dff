"""The lab: a VPC in network namespaces, for tests, benchmarks and newcomers (design.md section 9)."""
