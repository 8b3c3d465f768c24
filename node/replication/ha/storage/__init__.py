"""The files of a master-slave replica.

Log, epochs, binding, losses and images. These modules import `core` and the store and no
connection; the shell and offline tools import them.
"""
