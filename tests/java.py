"""Options of the Java processes that tests start: most of them live for seconds.

The second compiler and the parallel collector pay off after minutes; before, they take as much
processor time as the work. What a program does is the same.
"""

from typing import Final

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
VARIABLE: Final = "JDK_JAVA_OPTIONS"
"""Java takes more options from it, where a test does not write the command itself."""
