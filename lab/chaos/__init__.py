"""Chaos runs: three lab nodes under random pods, kills, cloud faults and clock steps, checked from outside (`python -m lab.chaos`)."""
