"""Comparisons of legs with EC2: whether EC2 confirms the ENI that a leg uses."""
