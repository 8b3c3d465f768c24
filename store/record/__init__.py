"""The message record.

Its codec, the stamp that only the store can give, and the checks of what is stored. These modules
import `files` and the ground and know no log; logs, derived files and checks import them.
"""
