"""The rules of the inventory, its files and its port, without EC2."""
