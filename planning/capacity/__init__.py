"""Capacity: what a load needs, where replicas go, and how a fleet of hosts fares under faults.

Arithmetic only: no I/O, no clock, no randomness but from a given seed. `plan` turns a demand
(`demand`), a calibration (`calibration`, `append_cost`) and the sizes of what is written
(`formats`, `traffic`) into figures with their formulas (`figure`); `disks`, `hosts`
and `times` hold the formulas. `placement` and `leaders` choose hosts for replicas and for
leaders, and `fleet` simulates hundreds of groups. Imports nothing of the project;
`planning.commands` hands in what it reads from the store's formats and from files.
"""
