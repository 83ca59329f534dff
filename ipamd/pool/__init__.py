"""How many addresses the node should have ahead of need, and what EC2 refused: the planner's input and its loop."""
