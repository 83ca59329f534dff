"""The gRPC edge: decode envelopes, call services with typed requests, encode results and errors."""
