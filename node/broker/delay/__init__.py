"""Delayed messages.

Admitted, held, delivered when they are due, cancelled. A held message is an ordinary record on a
queue of its own (`node.broker.records.delayed`), and which ones were taken from there is replicated
state (`node.state.tables.delay`). Everything here is either a rewrite of a client's batch or the
leader's soft state, built again from queues and state by the next one. These modules import `core`,
`append` and `records`; the face of the broker imports them.
"""
