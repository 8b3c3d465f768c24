"""The HA link.

Every replica dials every other one; frames and images travel on it. These modules import the
handshake of the peer link and the wire of `core`; the shell and a master-slave node import them.
"""
