"""`ipamctl`: what an operator asks of the daemon. Tables for people, `-o json` for programs; heavy imports only when needed."""
