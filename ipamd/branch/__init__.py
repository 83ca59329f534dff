"""Pods with security groups of their own, on branch ENIs. Imported only where a setting asks for it."""
