"""The budgets of design section 11, measured: `python -m bench`. Every figure has its reference from the same run."""
