"""The proxy between this machine and a server, if there is one: it may refuse in the server's place."""

from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass


def proxy_for(address: str) -> str:
    """Host and port of the proxy that the environment names for an address, without its password; empty for none."""
    parts, proxies = urlsplit(address), getproxies_environment()
    named = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not named or proxy_bypass(parts.hostname or ""):
        return ""
    return urlsplit(named if "//" in named else f"//{named}").netloc.rpartition("@")[2]
