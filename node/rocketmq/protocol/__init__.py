"""The words of the RocketMQ protocol.

Names, codes, handles, messages and filters, to ours and back. These modules import the generated
messages and the record codec and know no client; the calls and the service import them.
"""
