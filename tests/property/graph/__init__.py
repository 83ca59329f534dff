"""The shipped graph, with its own threads, in simulated time: random use, faults and kills, judged from outside."""
