"""The network of the simulated VPC: a namespace that is the router, a veth pair for each attached ENI, and EC2's source check."""
