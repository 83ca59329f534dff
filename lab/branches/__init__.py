"""The cluster's side of security groups for pods: pods, the controller that makes branch ENIs, and what kubelet does."""
