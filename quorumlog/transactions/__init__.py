"""Transactions.

Of a producer with local work, and of a consumer with the outputs of its messages. These modules
import produce and consume; the clients import them.
"""
