"""Measures the performance budgets (bench/figures.py): `python -m bench`. Every figure has its reference from the same run."""
