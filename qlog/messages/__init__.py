"""Commands that send, read and find messages.

These modules import the client and shared parts of the command line; the list of commands names
them as text.
"""
