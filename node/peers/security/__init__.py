"""The defence against strangers.

TLS for links and services, the lifetime of certificates, and proofs of the cluster's secret. These
modules import the errors only; the handshake, the configuration, name server and nodes import them.
"""
