"""Fuzzers of every parser that reads bytes of strangers, peers, nodes or disks.

Owns the table of targets (`targets`), their bounds of memory and steps (`target`), and the inputs
that Hypothesis and atheris search (`search`). A target states its claim as a function of bytes;
which errors are typed answers belongs to the parser. `corpus` has inputs that once broke a claim.
"""
