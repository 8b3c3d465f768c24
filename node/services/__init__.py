"""The gRPC services: thin adapters between the wire and the broker, and their server.

These modules import the broker, the name server's calls and their bounds; `framed`, `rocketmq`,
monitoring and nodes import them.
"""
