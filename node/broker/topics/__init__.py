"""Topics.

Created, changed and listed, and exchanged as the files of RocketMQ. These modules import `core` and
`append`; only the face of the broker imports them.
"""
