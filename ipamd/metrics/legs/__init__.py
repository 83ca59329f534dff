"""Metrics of legs."""
