"""`qlog bench`.

Measures this machine, the engine and a cluster. The commands import the client, the package
`bench` and shared parts of the command line; the list of commands names them as text. `calibrate`
lies in `planning.commands`, beside the plans that read its file.
"""
