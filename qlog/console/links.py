"""Addresses of pages."""

from urllib.parse import quote, urlencode


def link(*parts: object, **query: object) -> str:
    """Return the address of a page; each part is quoted whole. None is left out."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
