"""Planning: which cluster a load needs, and how a fleet of hosts fares under faults.

`capacity` is arithmetic and imports nothing of the project; `bench`, which measures what a plan
rests on, and `qlog cluster rebalance` import it. `commands` are `qlog plan`, `qlog fleet` and `qlog
bench calibrate`; `qlog` names them as text.
"""
