"""What the pages for operators say, tried on nodes that have the trouble."""
