"""Calls between simulated processes, in the place of gRPC: each is one connection of its own.

Owns a small channel and a small server, with the names of `grpc.aio` that nodes and the SDK use.
The network delays, loses and cuts what they send. HTTP/2, states of channels, limits of sizes and
TLS are not there: `chaos-tests` has real gRPC under faults. Imports grpcio for its errors and
handlers, `simulation.world` and what stands below it, and `node.services.bounds.connection_cut`,
which it replaces. Knows no method of a node.
"""
