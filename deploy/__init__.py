"""Local clusters, the jobs that run on them, alert rules, and what builds and sets up this project.

`local` and the modules beside it start nodes as programs and must not know their inside; `node` and
the layers below it must not know this package. That this file is here keeps a package `deploy` of a
user's own from being ours.
"""
