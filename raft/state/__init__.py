"""State of one replica.

Its fields, its view of the log, its progress with each follower. These modules import the words of
the protocol (`messages`, `ready`, `config`) and no rule; the rules and the core import them.
"""
