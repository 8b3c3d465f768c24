"""One replica of the name server: PySyncObj held to our rules, its journal, dumps and lives.

These modules import the directory and files; the service and monitoring
import them.
"""
