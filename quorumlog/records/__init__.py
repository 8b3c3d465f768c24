"""Values of the client.

Messages, batches, queues, receipts, options, and their bytes. These modules import the errors only;
all packages above import them.
"""
