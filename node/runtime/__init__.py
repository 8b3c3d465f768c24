"""Services that any process needs: its log (`logs`), the end on a fault, watches, files, a clock.

These modules import `errors` and nothing else of a node; every folder above imports them.
"""
