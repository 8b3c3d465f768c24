"""The storage engine: a memory-mapped commit log of the Apache RocketMQ design, and all it needs.

Owns every byte on disk. Must not know about consensus, sockets, gRPC or an event loop; blocking
calls are allowed here and nowhere else. Start reading at `store.store`.
"""
