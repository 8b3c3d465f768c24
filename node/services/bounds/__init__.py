"""Bounds for what strangers can make gRPC hold.

Requests half sent, responses not taken, connections. These modules import errors and how a call
runs; the server and monitoring import them.
"""
