"""The console: a cluster in a browser. `qlog console` runs it, on any machine that reaches a node.

A client of the public SDK: nothing is read behind the nodes' backs. `app` has the routes, `shield`
what a browser and other sites may do, `cluster` the connection, and each module of `pages` the data
of one page, which the template of the same name shows. No page loads anything from elsewhere.
"""
