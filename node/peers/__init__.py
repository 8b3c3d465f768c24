"""The peer link.

Frames between nodes over connections that heal themselves, handshake, proof and TLS. `frames` lists
all kinds of frames; those of the handshake are made and read here, all others by the modules of
`node.replication`. These modules import `runtime` and `errors`; both ways to replicate import the
link, `config` the proof and TLS.
"""
