"""The official RocketMQ client for Python, against this cluster and against its own ceiling.

`python -m bench.official` sends with the client of deploy/cache.py in turn to a server
that stores no message and to three nodes, and prints both. The difference is ours, the rest is
the client's.
"""
