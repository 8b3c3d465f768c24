"""Faults of a plan, done to a cluster: processes, power, links, clocks, disks.

Imports the cluster and everything below it; `simulation.trial` uses it.
"""
