"""Fuzzers of every parser that reads bytes of strangers, peers, nodes or disks.

Owns the search (`engine`: mutations guided by the lines that an input reaches), the bounds of
memory and steps that each input has, and the table of targets (`targets`). A target states its
claim as a function of bytes; which errors are typed answers belongs to the parser. One seed gives
one run.
"""
