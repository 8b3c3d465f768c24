"""gRPC between simulated processes: what stands below the Python part of `grpc.aio`.

Owns connections, channels, calls and servers over the streams of `simulation.network`. The Python
part of grpcio runs as it is, so its rules for callers (styles of reading, cancelling, closing) are
the real ones; only the extension module below it is simulated, with the codes, texts and order that
it shows at its interface. Imports grpcio, `simulation.world` and what stands below it, and of the
project what it replaces: `node.services.bounds.connection_cut`. Knows no method of a node. Trials
and tests import `simulation.rpc.substitute`, and nothing else of it.
"""
