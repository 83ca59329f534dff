"""The takeover of each kind of leg from amazon-vpc-cni-k8s."""
