"""`qlog pipeline`.

Jobs on Spark: their options, their progress and what they print. The commands import the jobs of
`pipeline` when they run, so that help needs neither Spark nor Java; the list of commands names them
as text.
"""
