"""Interpreter calls of one append, on the leader, on a follower and in the client.

`python -m bench.calls` starts three nodes as processes, sends messages one at a time and batches of
100, and counts calls of functions in Python and in C on the thread of each event loop. Calls say
how much code an append touches, and no other work on the machine changes them, as it does times.
"""
