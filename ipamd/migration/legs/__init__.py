"""How a migration takes over each kind of leg from amazon-vpc-cni-k8s."""
