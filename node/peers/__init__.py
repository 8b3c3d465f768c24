"""Connections between nodes.

Frames over connections that heal themselves, handshake, proof and TLS. `common_link` is what the
links of both modes share; `link` is the peer link of raft mode. `frames` lists all kinds of frames
of the peer link; those of the handshake, pings and pongs are made and read here, `node.replication`
makes and reads all others. `lives_file` has what a node remembers of the lives of its peers. These
modules import `runtime` and `errors`, and of `raft` the values that frames carry; both ways to
replicate and the name server import them, `config` the proof and TLS.
"""
