"""What any process needs around its work.

Logs, the end on a fault, watches, files of the process, a clock. These modules import `errors` and
nothing else of a node; every folder above imports them.
"""
