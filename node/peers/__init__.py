"""The peer link.

Frames between nodes over connections that heal themselves, handshake, proof and TLS. These modules
import `runtime` and `errors`; both ways to replicate import the link, `config` the proof and TLS.
"""
