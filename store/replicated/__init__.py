"""Stores whose log is replicated.

What is appended becomes visible once its owner confirms it. These modules import the whole engine
and know no peer; only nodes and tests import them.
"""
