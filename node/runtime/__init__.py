"""Services that any process needs: logs, the end on a fault, watches, process files, a clock.

These modules import `errors` and nothing else of a node; every folder above imports them.
"""
