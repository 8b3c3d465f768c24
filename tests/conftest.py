"""What all tests share: hypothesis without a clock, so that a busy machine fails no test."""

from hypothesis import settings

settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")
