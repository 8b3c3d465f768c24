"""The framed client port: calls on the path of a message over TCP frames, beside gRPC.

These modules import the broker, errors, `node.services.calls` and its bounds; monitoring and nodes
import them. Parser, connection and table of connections know no method: a kind of header has a
`Conversation` that reads its frames, so that another protocol can share the port.
"""
