"""The simulated cluster.

Processes, network, clients, faults and referees around one heap of events. These modules import the
simulated disk, the pump and the histories. Each knows the others through `World`, as types only
where the import would go back; the runner imports them.
"""
