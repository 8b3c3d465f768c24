"""Virtual time, processes, threads and event loops: the ground that simulated machines stand on.

Imports nothing of the project but itself. The other folders of `simulation` import it.
"""
