"""The options of `streamfuse serve`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from streamfuse.options import OptionError, check, option

KEY_VARIABLE = "STREAMFUSE_API_KEY"
_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class ServeOptions:
    """How the server listens, and what it allows. OptionError names the option that is wrong."""

    host: str = option(
        "127.0.0.1", "Address to listen on. An address other than loopback needs --api-key.", common=True
    )
    port: int = option(
        8000, "Port to listen on; 0 chooses a free one. The URL is printed.", least=0, most=65535, common=True
    )
    api_key: str | None = option(
        None,
        f"Refuse requests without this key. Prefer {KEY_VARIABLE} in the environment, because other users of the "
        "machine can read flags.",
        shown=f"from {KEY_VARIABLE}",
        metavar="KEY",
        common=True,
    )
    cors_origin: tuple[str, ...] = option(
        (),
        "Allow web pages of this origin, or of all (*). An origin is like http://localhost:3000 or "
        "app://obsidian.md. Repeat the flag for several.",
        metavar="ORIGIN",
        common=True,
    )
    model_name: str | None = option(
        None, "Name of the model in requests and responses.", shown="from the bundle", metavar="NAME", common=True
    )
    queue: int = option(
        16, "Maximum number of requests that wait for their turn; more get status 429.", least=0, most=4096
    )
    max_new_tokens: int | None = option(
        None, "Token limit of requests that do not set one.", shown="the rest of the context", least=1, common=True
    )
    grace: float = option(
        10.0, "Seconds that the current answer may take after Ctrl-C or SIGTERM.", metavar="SECONDS", least=0, most=3600
    )

    def __post_init__(self) -> None:
        check(self)
        if self.api_key is not None and not re.fullmatch(r"[!-~]+", self.api_key):
            raise OptionError(f"--api-key (or {KEY_VARIABLE}) must be printable ASCII characters without spaces")
        if self.model_name == "":
            raise OptionError("--model-name must not be empty; leave it out for the bundle's own name")
        if self.api_key is None and not is_loopback(self.host):
            raise OptionError(
                f"--host {self.host} can be reached from other machines, so it needs --api-key (or {KEY_VARIABLE})"
            )
        for origin in self.cors_origin:
            if origin != "*" and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9_.:\[\]-]+", origin):
                raise OptionError(
                    "--cors-origin must be * or SCHEME://HOST[:PORT] without a path, like https://example.org, not "
                    f"{origin!r:.80}"
                )
        object.__setattr__(self, "cors_origin", tuple(map(_as_sent, self.cors_origin)))


def _as_sent(origin: str) -> str:
    """An origin as browsers send it: in small letters, and without the port that its scheme stands for."""
    scheme, _, host = origin.lower().partition("://")
    return origin if origin == "*" else f"{scheme}://{host.removesuffix(_PORTS.get(scheme, ''))}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
