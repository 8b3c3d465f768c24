"""Records that the broker makes of others.

Delayed, given back, half of a transaction. These modules import the codec of the store and no rule;
the parts of the broker import them.
"""
