"""Bounds for data of strangers in gRPC: requests half sent, responses not taken, connections.

These modules import errors and `node.services.calls`; the server, `framed` and monitoring import
them.
"""
