"""Fault injection into clusters of real processes: faults, load, histories, checkers, reports."""
