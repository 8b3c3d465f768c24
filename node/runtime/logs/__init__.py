"""The log of a node: the form of its lines, lines of libraries and native code, and limits on them.

These modules know nothing of a node; lifecycles configure the log, and whatever strangers can make
write takes a limit.
"""
