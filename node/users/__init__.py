"""Users, roles and rights: who may do what. Rules and credentials alone, without calls.

Must not know protocols, sockets or the replicated state around them.
"""
