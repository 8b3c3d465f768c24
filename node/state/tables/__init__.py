"""Tables of the replicated state, one file for each feature; `node.state.registry` lists them.

A table imports errors and limits and never another table's rules; the state, the broker and
checkpoints import them.
"""
