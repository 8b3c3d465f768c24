"""The gRPC services.

Thin adapters between the wire and the broker, and the server they run in. These modules import the
broker, the name server's calls and their bounds; gateways, monitoring and nodes import them.
"""
