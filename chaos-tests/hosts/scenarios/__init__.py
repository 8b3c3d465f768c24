"""The scenarios on hosts, by what they hit. Importing this package registers them."""

from hosts.scenarios import gray, links, places

__all__ = ["gray", "links", "places"]
