"""Clusters on this machine, the main jobs, alert rules, and what builds and sets up this project.

`local` and the modules beside it run nodes as programs and import nothing of `node`. `qlog`,
`bench`, the suites and the tests import them.
"""
