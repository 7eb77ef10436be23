"""The certificates that this machine trusts, as a Java key store.

1. A runtime that came in a wheel brings its own list and does not know what was added on this
   machine (a company's proxy, say). What Python trusts here is written down in the one form that
   every Java reads.
2. The form (JKS): magic, version 2, number of entries; each entry a tag, an alias, a time in ms,
   "X.509" and the DER bytes; last a SHA-1 over a password, a fixed text and all before. Numbers are
   big-endian, texts have two bytes of length. The password guards nothing, what is kept is public.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

PASSWORD = "changeit"  # noqa: S105  Java's own, of every truststore
SALT = b"Mighty Aphrodite"
MAGIC, VERSION, CERTIFICATE = 0xFEEDFEED, 2, 2
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def certificates() -> list[bytes]:
    """DER of everything in the files and folders where OpenSSL looks here."""
    found = (
        ssl.PEM_cert_to_DER_cert(block.decode())
        for path in files()
        for block in PEM.findall(path.read_bytes())
    )
    return list(dict.fromkeys(found))


def files() -> Iterator[Path]:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        yield Path(paths.cafile)
    if paths.capath and Path(paths.capath).is_dir():
        yield from (path for path in sorted(Path(paths.capath).iterdir()) if path.is_file())


def key_store(trusted: Iterable[bytes]) -> bytes:
    """The content of the file."""
    entries = [
        struct.pack(">I", CERTIFICATE)
        + text(str(number))
        + struct.pack(">Q", 0)
        + text("X.509")
        + struct.pack(">I", len(der))
        + der
        for number, der in enumerate(trusted)
    ]
    content = struct.pack(">III", MAGIC, VERSION, len(entries)) + b"".join(entries)
    return (
        content
        + hashlib.sha1(
            PASSWORD.encode("utf-16-be") + SALT + content, usedforsecurity=False
        ).digest()
    )


def text(word: str) -> bytes:
    return struct.pack(">H", len(word)) + word.encode()


def options(path: Path) -> list[str]:
    """Writes the key store to `path`; Java's options that make it the one to trust."""
    path.write_bytes(key_store(certificates()))
    settings = {"trustStore": path, "trustStoreType": "JKS", "trustStorePassword": PASSWORD}
    return [f"-Djavax.net.ssl.{name}={value}" for name, value in settings.items()]
