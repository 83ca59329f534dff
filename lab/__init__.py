"""The lab: a VPC in network namespaces, for tests, benchmarks and newcomers; lab/README.md is the way in."""
