"""The takeover of each kind of leg from amazon-vpc-cni-k8s. A leg is one veth pair of a sandbox (`ipamd/model/legs/`)."""
