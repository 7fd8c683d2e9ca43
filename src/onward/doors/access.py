"""Who calls: the token of a request becomes a `Caller`, or the request is refused.

Here is the only list of paths that need no key. A route that reaches no scope and is not on it
stops the start.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.routing import BaseRoute, Route, WebSocketRoute

from onward.core.errors import RateLimited, Unauthorized
from onward.doors.hints import hint_text
from onward.doors.refusal import Refusal
from onward.native.caller import ANONYMOUS, Caller
from onward.native.key_store import KeyStore

Scope = MutableMapping[str, Any]

# Under TLS its name has the prefix with which a browser takes it from this very host alone: else
# another host of the domain could log somebody in here with a key of its own.
COOKIE, OF_THIS_HOST = "onward_key", "__Host-"
PROTOCOL, BEARER = "onward", "bearer."  # what a browser's socket offers: this one, and its token

# Need no key. The page's files are the same for everybody; what they show comes by other paths.
OPEN_PATHS = {
    "/health": ("GET", "HEAD"),
    "/ready": ("GET", "HEAD"),
    "/api/v2/login": ("POST",),
    "/": ("GET", "HEAD"),
}
PAGE, PAGE_FILES = "/ui", "/ui/"
ANY_KEY_PATHS = ("/openapi.json",)  # whatever its scopes are


class Access:
    def __init__(self, keys: KeyStore) -> None:
        self.keys = keys

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Raises a Refusal: 401 or 429."""
        if is_open(scope.get("method", ""), scope["path"]):
            return ANONYMOUS
        try:
            return self.keys.caller(token_of(scope, headers))
        except Unauthorized as error:
            raise unauthorized(error) from error
        except RateLimited as error:
            after = {"retry-after": str(error.retry_after_s)}
            raise Refusal(429, error.code, str(error), hint=error.hint, headers=after) from error


def unauthorized(error: Unauthorized) -> Refusal:
    headers = {"www-authenticate": "Bearer"}
    return Refusal(401, error.code, str(error), hint=hint_text(error), headers=headers)


def token_of(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    """Authorization first: a program that sends it means it, whatever cookie it carries along."""
    kind, _, token = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer" and token.strip():
        return token.strip().decode("latin-1")
    if b"x-api-key" in headers:
        return headers[b"x-api-key"].decode("latin-1").strip()
    for offered in scope.get("subprotocols") or ():
        if offered.startswith(BEARER):
            return str(offered.removeprefix(BEARER))
    if b"cookie" in headers:
        wanted = under_scheme(COOKIE, scope.get("scheme", ""))
        for part in headers[b"cookie"].decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == wanted:
                return value
    return None


def is_open(method: str, path: str) -> bool:
    return method in OPEN_PATHS.get(path, ()) or path == PAGE or path.startswith(PAGE_FILES)


def under_scheme(cookie: str, scheme: str) -> str:
    """A cookie, or its name, as it is called there."""
    return f"{OF_THIS_HOST}{cookie}" if scheme in ("https", "wss") else cookie


def login_cookie(token: str) -> str:
    """Sent back by the browser to this server alone, and never from another site's page."""
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={30 * 86_400}"


LOGOUT_COOKIE = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """TypeError: one of these reaches no scope, and is not listed as open."""
    for route in routes:
        path = getattr(route, "path", "")
        scopes = getattr(route, "scopes", None) or getattr(
            getattr(route, "endpoint", None), "scopes", None
        )
        methods = getattr(route, "methods", None) or ("",)
        listed = path in ANY_KEY_PATHS or all(is_open(method, path) for method in methods)
        if not isinstance(route, Route | WebSocketRoute) or not (scopes or listed):
            raise TypeError(f"{path or repr(route)} reaches no scope, and is not listed as open")
