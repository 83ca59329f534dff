"""The fleet in virtual time: the shipped planner, executor and EC2 adapter of many nodes, on a model of EC2."""
