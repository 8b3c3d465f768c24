"""A fleet of hosts with hundreds of groups, simulated from one seed: numbers only, no nodes.

`scenario` says what there is and what fails, `state` holds hosts, copies and leaders,
`traffic_flow` shares processors, disks and networks among them, `simulation` is the loop of
events, `report` turns what it saw into rows. Imports the formulas, the placement and the leaders
of `planning.capacity`.
"""
