"""Benchmarks: figures of the engine and the cluster, beside the limits of the machine.

Owns the measuring; nothing here is a test, and no test measures time. Figures of one run are
compared as ratios only: the machines are noisy and their disks are throttled at times.
"""
