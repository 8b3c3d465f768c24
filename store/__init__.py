"""The storage engine.

A memory-mapped commit log of the Apache RocketMQ design, and all it needs. The package owns every
byte on disk. It must not know about consensus, sockets, gRPC or an event loop; blocking calls are
allowed here and nowhere else. `store` is the engine, `reads` what it can be asked, `opening` the
order of recovery; `config`, `errors`, `format`, `checksum`, `stats` and `put_lock` are the ground
that all folders stand on. Start reading at `store.store`.
"""
