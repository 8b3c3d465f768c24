"""Reads.

Pulls, queries, the trace of one message, the gate to single messages (`visibility`), and the
filters of consumers. These modules import `core`, the settings of groups and the message sizes of
`append`; pop imports the filters, delay and the gateways the gate, the face of the broker the rest.
"""
