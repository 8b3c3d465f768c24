"""Stores whose log is replicated.

Appended records become visible once the owner confirms them. These modules import the whole engine
and know no peer; only nodes and tests import them.
"""
