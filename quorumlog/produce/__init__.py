"""Producing.

Messages in, batches out in order, deliveries and receipts back. These modules import cluster and
records and no consumer; transactions, admin and the clients import them.
"""
