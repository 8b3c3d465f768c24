"""The cluster as a client sees it.

Groups, leaders, channels, calls tried again under one deadline. These modules import arguments and
records; everything that makes a call imports them.
"""
