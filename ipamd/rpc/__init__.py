"""The gRPC services: decode envelopes, call the use cases with typed requests, encode results and errors."""
