"""The VPC's wires: one namespace that routes, one veth pair per attached ENI, and EC2's source check."""
