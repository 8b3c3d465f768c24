"""Settings of a node, the code that reads and checks them, and the limits of the broker.

`settings` lists the settings, `conflicts` has the rules between them, and `reference` writes
docs/configuration.md. These modules import `peers` for TLS and proof, and `runtime`; everything
above imports settings and limits.
"""
