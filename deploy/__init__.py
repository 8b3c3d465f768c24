"""Local clusters, the jobs that run on them, and what makes and keeps the checkout.

The package starts nodes as processes and must not know their inside; `node` and the layers below it
must not know it. That this file is here keeps a package `deploy` of a user's own from being ours.
"""
