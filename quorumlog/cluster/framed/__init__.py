"""Frames of a node's framed port, as a client sees them.

Their layout, the one connection to a node, and the choice between frames and gRPC. These modules
import errors and generated messages; channels, calls and append sessions import them.
"""
