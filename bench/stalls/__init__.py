"""The longest stand-still of a node's event loop for the largest legal input of each request.

`python -m bench.stalls` starts one node as a process, fills its tables, and sends each request code
of the classic protocol and the large calls of the own services in turn, beside a producer: once
alone, and then several at once on one connection.
"""
