"""Messages that a consumer gave back.

Tried again after a pause, or kept as dead letters. These modules import `append`, `records` and the
settings of groups; only the face of the broker imports them.
"""
