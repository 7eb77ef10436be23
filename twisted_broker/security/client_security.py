"""How our own clients reach a secured cluster: the properties of a Java client.

Owns `ClientSecurity`, for the consumer, `replog mirror` and `replog unregister`.

1. What a property asks for is done, or refused in one line that names it: a mechanism that there is
   none of, a class of one's own, a login module of another mechanism, no password.
2. No line shows a password or a token, and neither does `repr`.
3. A name that begins as one of these properties and is none is refused: a typo must not leave a
   connection less secure than was meant.

Source: Kafka's `CommonClientConfigs`, `SslConfigs`, `SaslConfigs`. Not here: TLS (`net/tls*.py`),
connections (`net/client_connector.py`), what a broker says to others (`sasl/settings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.config import BROKER_SETTINGS, setting_row
from twisted_broker.known_settings import broker_settings as known_broker_settings
from twisted_broker.security.sasl import jaas, oauth_client, plain
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.oauth_client import OAuthClient
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.scram import MECHANISMS, ScramClient
from twisted_broker.security.sasl.settings import HIDDEN, NewClient
from twisted_broker.security.security_protocol import SecurityProtocol, protocol_named
from twisted_broker.settings import ConfigError, Setting, Type, Value

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
USER, PASSWORD = "sasl.username", "sasl.password"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105  a name
_ROWS = {
    row.name: row
    for row in (
        Setting(PROTOCOL, Type.STRING, SecurityProtocol.PLAINTEXT.name, ""),
        Setting(MECHANISM, Type.STRING, "GSSAPI", ""),
        # librdkafka's, for who has no JAAS line.
        Setting(USER, Type.STRING, None, "", nullable=True),
        Setting(PASSWORD, Type.PASSWORD, None, "", nullable=True),
    )
}
_PREFIXES = ("ssl.", "sasl.", "security.")
_CLASSES = (
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)
# Kafka's own, which files of properties name: it reads the token's file, as is done here.
_HANDLERS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured.")
)
_SUPPORTED = (plain.MECHANISM, *MECHANISMS, oauth_client.MECHANISM)
_FILE = "file:"


def is_security(name: str) -> bool:
    """Whether the name of a client's property is one of these, or meant to be."""
    return name.startswith(_PREFIXES)


class ClientSecurity(ListenerConfig):
    """`properties`: those of a client whose names `is_security`; `token()`: for OAUTHBEARER, a
    token that is valid now, at once. Raises ConfigError.
    """

    __slots__ = ("_token", "properties", "protocol")

    def __init__(
        self, properties: Mapping[str, str], token: Callable[[], str] | None = None
    ) -> None:
        self.name = "of this client"
        self.properties, self._token = dict(properties), token
        for name in self.properties:
            _check_known(name)
        self.protocol = protocol_named(self.text(PROTOCOL) or "", PROTOCOL)
        if self.protocol.uses_sasl:
            self._check_classes()
            self.login(_no_file)

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol.name}; {', '.join(sorted(self.properties))})"

    @property
    def whose(self) -> str:
        """For lines of the log."""
        return "this client"

    def value(self, name: str, mechanism: str = "") -> Value:
        row = _ROWS.get(name) or setting_row(name)
        given = self.properties.get(name)
        return row.default if given is None else row.parse(given)

    def _given(self, name: str, mechanism: str) -> str | None:
        return self.properties.get(name)

    def login(self, read_file: Callable[[str], bytes]) -> NewClient:
        """How connections authenticate themselves; `read_file(path)` raises OSError. Raises
        ConfigError.
        """
        mechanism = (self.text(MECHANISM) or "").upper()
        if mechanism == "GSSAPI":
            raise ConfigError(
                MECHANISM,
                mechanism,
                "",
                f"Kerberos (GSSAPI, Kafka's default) is not supported; set {', '.join(_SUPPORTED)}",
            )
        if mechanism not in _SUPPORTED:
            raise ConfigError(MECHANISM, mechanism, f"one of {', '.join(_SUPPORTED)}")
        if mechanism == oauth_client.MECHANISM:
            return self._with_token(read_file)
        user, password, token_authenticated = self._user(mechanism)
        if mechanism == plain.MECHANISM:
            return lambda nonce: PlainClient(user, password)
        return lambda nonce: ScramClient(
            MECHANISMS[mechanism], user, password, nonce, token_authenticated
        )

    def _user(self, mechanism: str) -> tuple[str, str, bool]:
        """Its name, its password, and whether these are a delegation token and its HMAC."""
        user, password = self.text(USER), self.text(PASSWORD)
        line = self.text(JAAS)
        if line and (user or password):
            raise ConfigError(JAAS, HIDDEN, f"no value where {USER} is set: remove one of the two")
        if not line and (user or password):
            if not (user and password):
                raise ConfigError(PASSWORD if user else USER, "", f"a value, as {USER} does")
            return user, password, False
        module = jaas.PLAIN if mechanism == plain.MECHANISM else jaas.SCRAM
        options = self._module(module, mechanism).options
        user, password = options.get("username"), options.get("password")
        if not user or not password:
            raise ConfigError(JAAS, HIDDEN, "username= and password=, of the user that this is")
        return user, password, options.get("tokenauth", "").lower() == "true"

    def _module(self, module: str, mechanism: str) -> jaas.LoginModule:
        line = self.text(JAAS)
        if not line:
            raise ConfigError(
                JAAS, "", f'{module} required username=".." password=".."; or set {USER}'
            )
        try:
            found = jaas.parse_jaas(line)
        except jaas.JaasError as error:
            raise ConfigError(JAAS, HIDDEN, str(error)) from None
        if found.module != module:
            raise ConfigError(JAAS, HIDDEN, f"{module}, the login module of {mechanism}")
        return found

    def _with_token(self, read_file: Callable[[str], bytes]) -> NewClient:
        token, url = self._token, self.text(TOKEN_URL)
        if token is not None:
            return lambda nonce: OAuthClient(_called(token))
        if not url or not url.startswith(_FILE):
            raise ConfigError(
                TOKEN_URL,
                url,
                "a file with a token, file:///PATH; a program may give a callable instead",
            )
        path = "/" + url.removeprefix(_FILE).lstrip("/")
        return lambda nonce: OAuthClient(_read(read_file, path))

    def _check_classes(self) -> None:
        for each in _CLASSES:
            named = self.text(each)
            is_oauth = (self.text(MECHANISM) or "").upper() == oauth_client.MECHANISM
            if named and not (is_oauth and named in _HANDLERS):
                raise ConfigError(each, named, "", "no class is ever loaded by its name; remove it")


PLAINTEXT = ClientSecurity({})


def not_used(names: Iterable[str]) -> list[str]:
    """Of a client's properties those that are of no use here, sorted."""
    return sorted(each for each in names if not is_security(each))


def _check_known(name: str) -> None:
    if name in _ROWS or name in BROKER_SETTINGS or name in known_broker_settings():
        return
    known = [each for each in (*BROKER_SETTINGS, *known_broker_settings()) if is_security(each)]
    near = get_close_matches(name, (*_ROWS, *known), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(name, HIDDEN, "", f"no client has this setting{hint}")


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(path)


def _called(token: Callable[[], str]) -> str:
    try:
        return token()
    except Exception as error:  # whatever the program's own code raises: this connection fails
        raise SaslFailure(f"the program has no token: {type(error).__name__}") from error


def _read(read_file: Callable[[str], bytes], path: str) -> str:
    try:
        return read_file(path).decode("ascii").strip()
    except OSError as error:
        raise SaslFailure(f"{TOKEN_URL}: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SaslFailure(f"{TOKEN_URL}: {path} is no token") from None
