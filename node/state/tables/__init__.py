"""Tables of the replicated state, one file for each feature; `node.state.registry` lists them.

`table` says what a table is: its commands, and its form in snapshots and checkpoints. Values that
several of them need lie beside them (`offset_set`, `topic_types`). A table imports
errors and limits and never another table's rules; the state, the broker and checkpoints import
them. Topics, groups, offsets, producers and members are older than tables: `node.state.state` has
them.
"""
