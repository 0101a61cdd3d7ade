"""Who sends a request: the bearer token of its Authorization header (RFC 6750, section 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.server.services.access import Caller, authenticate, unauthenticated

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from orbit.server.parts import Platform


async def caller_of(headers: Headers, platform: Platform) -> Caller:
    """Authenticate a request or a WebSocket by its headers. Raises ApiError UNAUTHENTICATED; safe to cancel."""
    given = headers.getlist("authorization")
    scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
    if scheme.lower() != "bearer":
        raise unauthenticated()
    return await authenticate(platform.pool, token.strip(" "), platform.limits)
