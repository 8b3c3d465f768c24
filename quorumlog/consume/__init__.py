"""Consuming.

Pull, group and pop consumers, single reads, and their common parts. Each kind of consumer is a
module of its own, made by the client; broadcasting is a mode of the group consumer. `raw` reads and
appends records as they are encoded. These modules import cluster and records and no producer;
transactions, admin and the clients import them.
"""
