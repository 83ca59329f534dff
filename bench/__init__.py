"""Measure performance and compare it with the budgets of bench/figures.py: `python -m bench`. The reference of a figure is measured in
the same run."""
