"""Transactions.

Of a producer with local work, and of a consumer with what it makes of messages. These modules
import produce and consume; the clients import them.
"""
