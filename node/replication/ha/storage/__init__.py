"""What a master-slave replica keeps on disk.

Its log, epochs, binding, losses and images. These modules import `core` and the store and no
connection; the shell and offline tools import them.
"""
