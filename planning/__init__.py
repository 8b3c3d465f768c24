"""Planning: which cluster a load needs, and how a fleet of hosts fares under faults.

`capacity` is arithmetic and imports nothing of the project; `bench`, which measures what a plan
rests on, imports it. `commands` are `qlog plan`, `qlog fleet`, `qlog cluster rebalance` and `qlog
bench calibrate`; `qlog` names them as text.
"""
