"""Machines of a world.

Clock, disk, address, and the modules of Python that code of a machine sees. Imports
`simulation.kernel`, `simulation.network` and `simulation.disk`, and of the project the few
functions that it replaces. `simulation.world` and all that stands above it import these modules.
"""
