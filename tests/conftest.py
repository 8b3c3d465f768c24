"""What all tests share: hypothesis without a clock, so that a busy machine fails no test; and a
look, after each module, at what its tests left open."""

from hypothesis import settings

from tests.leaks import libraries_in_use, nothing_is_left_behind

__all__ = ["libraries_in_use", "nothing_is_left_behind"]

settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")
