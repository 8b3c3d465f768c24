"""The log microscope: bytes of a store, field by field, each decoded and checked.

`specimen` has the values, `record`, `entry` and `derived` the fields of each kind, `one_byte` the
damaged byte that a checksum names. `look` leads from bytes to rows, `difference` compares two
replicas, and `directory` finds the bytes in files. Only the last one reads. Damaged bytes never
raise. It imports all of `store`, and nothing else; the command line, the calls of a node and the
console show what it returns.
"""
