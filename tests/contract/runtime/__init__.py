"""What every implementation of the port `Runtime` promises, and how the real adapter handles hostile answers."""
