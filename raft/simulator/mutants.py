import json
from raft.simulator.mutation import Mutant
MUTANTS=[Mutant(*r,1) for r in json.load(open('/tmp/rows.json'))]
