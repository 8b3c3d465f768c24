"""Benchmarks: what the engine and the cluster do, beside what the machine can do.

Owns the measuring; nothing here is a test, and no test measures time. Figures of one run are
compared as ratios only: the machines are noisy and their disks are throttled at times.
"""
