"""The integration tests of amazon-vpc-cni-k8s, run against vpc-ipamd on the cluster of `make cluster`."""
