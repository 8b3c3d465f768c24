"""Fault injection into clusters whose nodes run on hosts of their own: network namespaces with
addresses, joined by a switch that can lose, delay and refuse every frame.

The load, the histories and the judges are those of `chaos`; only where the processes run, and how
faults are made, is new.
"""
