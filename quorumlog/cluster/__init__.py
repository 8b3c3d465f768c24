"""The cluster as a client sees it.

Groups, leaders, channels, calls tried again under one deadline. These modules import arguments and
records; all modules that make calls import them.
"""
