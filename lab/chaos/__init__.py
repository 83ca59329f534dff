"""Chaos: two lab nodes under random pods, kills, cloud faults and clock steps, watched from outside (`python -m lab.chaos`)."""
