"""Run the integration tests of amazon-vpc-cni-k8s against vpc-ipamd, on a cluster of `lab/cluster`."""
