"""The gRPC services: thin adapters between the wire and the broker, and the server they run in."""
