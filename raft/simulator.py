"""`python -m raft.simulator`: the simulator of the core, which is `simulation.raft`.

It is in no wheel: a checkout has it.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("simulation.raft", run_name="__main__")
