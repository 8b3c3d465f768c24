"""Consuming.

Pull, group and pop consumers, single reads, and what they share. These modules import cluster and
records and no producer; transactions, admin and the clients import them.
"""
