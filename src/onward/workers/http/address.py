"""Which URLs the server may call on behalf of others, and the addresses behind them.

A worker registers its own URL, so a client that can register could have the server call any host in
its network. Hence a list of allowed hosts; names are looked up once, and only the addresses found
then are called. `is_global` and `is_private` of `ipaddress` are not used: they differ between
releases, and miss an IPv4 address inside an IPv6 one.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from onward.core.errors import Invalid

Ip: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]

LOOKUP_S = 2.0
MOST_ADDRESSES = 4
SETTING = "ONWARD_WORKER_HOSTS"

# IPv6 that carries an IPv4 address: a router decides where it ends.
_CARRIERS = [IPv6Network(net) for net in ("64:ff9b::/32", "2002::/16", "2001::/32", "::/96")]
_NO_WORKERS = [ip_network(net) for net in ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")]
_NO_WORKERS += [ip_network(net) for net in ("::/128", "fe80::/10", "ff00::/8")]
# Metadata services of clouds, besides 169.254.169.254.
_NO_WORKERS += [ip_network(net) for net in ("100.100.100.200/32", "fd00:ec2::254/128")]

_url = re.compile(r"[A-Za-z0-9.:/_~\[\]-]+").fullmatch
_netloc = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?").fullmatch
_name = re.compile(r"(?=.{1,253}$)(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?").fullmatch
# A host whose last part is a number: some resolvers read it as an address, in octal or as a whole.
_numeric = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)\.?").fullmatch


class PinnedUrl(msgspec.Struct, frozen=True):
    """A URL that may be called, and the addresses that were found for it."""

    url: str
    host: str
    addresses: tuple[str, ...]


async def look_up(host: str) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Hosts:
    """The allowed hosts: names, addresses and networks."""

    def __init__(self, allowed: Iterable[str], *, resolve: Resolve = look_up) -> None:
        self._resolve = resolve
        self._names: set[str] = set()
        self._nets: list[IPv4Network | IPv6Network] = []
        for entry in allowed:
            self._allow(entry.strip().lower())

    def _allow(self, entry: str) -> None:
        try:
            self._nets.append(ip_network(entry.strip("[]"), strict=False))
        except ValueError:
            if _numeric(entry) or not _name(entry):
                raise ValueError(
                    f"{entry!r} is no host name, address or network (10.0.0.0/8)"
                ) from None
            self._names.add(entry.rstrip("."))

    async def pin(self, url: str) -> PinnedUrl:
        """Checks the URL and looks its name up, once and for all. Invalid if it is refused."""
        parts = _parts(url)
        host = (parts.hostname or "").rstrip(".")
        addresses = [_literal(host)] if _is_literal(host) else await self._addresses_of(host)
        if not self.admit(host, [str(address) for address in addresses]):
            raise _not_allowed(host)
        # IPv4 first: "localhost" is both, and most workers listen on 127.0.0.1 only.
        addresses.sort(key=lambda address: address.version)
        pinned = tuple(dict.fromkeys(map(str, addresses)))[:MOST_ADDRESSES]
        path = parts.path.rstrip("/")
        return PinnedUrl(f"{parts.scheme}://{parts.netloc.lower()}{path}", host, pinned)

    def check(self, url: str) -> None:
        """The same without a lookup. Invalid if it is refused whatever address the name has."""
        host = (_parts(url).hostname or "").rstrip(".")
        if _is_literal(host):
            allowed = self.admit(host, [str(_literal(host))])
        else:
            allowed = host in self._names or bool(self._nets)  # its address may be in one of them
        if not allowed:
            raise _not_allowed(host)

    def admit(self, host: str, addresses: Sequence[str]) -> bool:
        """Also for what was registered under an earlier list. Every address must be allowed."""
        by_name = host in self._names
        return bool(addresses) and all(self._reachable(ip_address(a), by_name) for a in addresses)

    def _reachable(self, address: Ip, by_name: bool) -> bool:
        if any(address in net for net in self._nets):
            return True
        # An allowed name allows its addresses, except where no worker can be: a name that points to
        # 169.254.169.254 would send the request to the cloud's metadata service.
        return by_name and not any(address in net for net in _NO_WORKERS)

    async def _addresses_of(self, host: str) -> list[Ip]:
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await self._resolve(host)
        except (OSError, TimeoutError, UnicodeError):
            found = ()
        if not found:
            raise Invalid(f"url: the host {host!r} is not known")
        return [_plain(ip_address(address.partition("%")[0])) for address in found]


def _not_allowed(host: str) -> Invalid:
    return Invalid(
        f"url: {host} is not among the hosts that this server may call",
        hint=f"name it in {SETTING} of the server",
    )


def _parts(url: str) -> SplitResult:
    for sign, what in (("@", "user name or password"), ("#", "fragment"), ("?", "query")):
        if sign in url:
            raise Invalid(f"url: it must not have a {what}; write http://host:port")
    # Before it is parsed: parsers differ on blanks, backslashes and full-width digits.
    if len(url) > 512 or not _url(url):
        raise Invalid("url: write http://host:port, and a path of plain letters if you need one")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Invalid("url: write http://host:port; this host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise Invalid("url: it must begin with http:// or https://")
    if port == 0 or not _netloc(parts.netloc.lower()):
        raise Invalid("url: write http://host:port; this host or port cannot be read")
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise Invalid("url: its path must not contain . or ..")
    return parts


def _is_literal(host: str) -> bool:
    if ":" in host:
        return True
    if not _numeric(host):
        if not _name(host):
            raise Invalid(f"url: {host!r} is no host name")
        return False
    return True


def _literal(host: str) -> Ip:
    try:
        return _plain(ip_address(host))
    except ValueError:
        raise Invalid("url: write the address as four plain numbers, as in 127.0.0.1") from None


def _plain(address: Ip) -> Ip:
    """An IPv4 address that is written as an IPv6 one becomes IPv4."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if int(address) > 1 and any(address in net for net in _CARRIERS):
        raise Invalid(f"url: {address} has another address within; name that one")
    return address
