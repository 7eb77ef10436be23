"""SASL as the settings of one listener say it: which mechanisms, whose passwords, for how long.

Owns `ServerSettings`, and our own credentials for other nodes.

1. A setting that would let in nobody, or somebody else than its operator thinks, is refused in one
   line that names it: no mechanism, GSSAPI, PLAIN without users, OAUTHBEARER without keys, a class
   of one's own.
2. No line shows a password, and neither does `repr`.

Source: Kafka's `SaslConfigs`, `BrokerSecurityConfigs`, `JaasContext`. Not here: the listener's own
values before the broker's (`broker_config.py`), keys of OAUTHBEARER (`net/jwks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.config import LISTENER_PREFIX
from twisted_broker.security.sasl import jaas, plain
from twisted_broker.security.sasl.access_token import OAuthLogin
from twisted_broker.security.sasl.client import ClientMechanism
from twisted_broker.security.sasl.oauth_client import OAuthClient
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.scram import MECHANISMS, ScramClient
from twisted_broker.settings import ConfigError

OAUTHBEARER = "OAUTHBEARER"
SUPPORTED = (plain.MECHANISM, *MECHANISMS, OAUTHBEARER)
HIDDEN = "[hidden]"
_ENABLED, _JAAS = "sasl.enabled.mechanisms", "sasl.jaas.config"
_JWKS = "sasl.oauthbearer.jwks.endpoint.url"
_MODULE_OF = {plain.MECHANISM: jaas.PLAIN, OAUTHBEARER: jaas.OAUTHBEARER} | dict.fromkeys(
    MECHANISMS, jaas.SCRAM
)
_CLASSES = (
    "sasl.server.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.client.callback.handler.class",
)
# Kafka's own, which files of settings name: it does what is done here.
_OAUTH_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_VALIDATORS = tuple(
    f"{_OAUTH_PACKAGE}{package}OAuthBearer{what}CallbackHandler"
    for package in ("", "secured.")
    for what in ("Validator", "Login")
)
_ENDPOINT, _RETRIEVER = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
)
_BY_DEFAULT, _BY_FILE, _BY_CREDENTIALS = (
    f"{_OAUTH_PACKAGE}{name}JwtRetriever" for name in ("Default", "File", "ClientCredentials")
)
# Nobody reads on the way what stays on the machine.
_NEAR = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/")
NewClient = Callable[[str], ClientMechanism]
"""Our side of one authentication, from a random nonce."""
TokenSource = Callable[[OAuthLogin], Callable[[], str]]
"""What gives the access token of now, or raises SaslFailure."""


class OAuthSettings(NamedTuple):
    """How tokens are verified: where the keys are, and what a token must say."""

    jwks_url: str
    refresh_ms: int
    audience: tuple[str, ...]
    issuer: str | None
    skew_ms: int
    name_claim: str


class ServerSettings(NamedTuple):
    """`users`: passwords of PLAIN; `lifetimes_ms`: of sessions, by mechanism; `receive_bytes`:
    the longest frame before authentication; `delay_ms`: after a failure.
    """

    mechanisms: tuple[str, ...]
    users: Mapping[str, str]
    lifetimes_ms: Mapping[str, int]
    receive_bytes: int
    delay_ms: int
    oauth: OAuthSettings | None = None

    def __repr__(self) -> str:
        return f"ServerSettings({', '.join(self.mechanisms)})"


def server_settings(config: ListenerConfig) -> ServerSettings:
    """Of a listener with SASL. Raises ConfigError."""
    mechanisms = tuple(dict.fromkeys(config.names(_ENABLED)))
    if not mechanisms:
        raise ConfigError(_ENABLED, "", _choices(config))
    for each in mechanisms:
        _check_mechanism(_ENABLED, each, config)
        _check_classes(config, each)
    users: Mapping[str, str] = {}
    if plain.MECHANISM in mechanisms:
        users = _login(config, plain.MECHANISM).users
        if not users:
            raise ConfigError(
                _jaas_name(config, plain.MECHANISM),
                HIDDEN,
                'users of PLAIN, each as user_NAME="PASSWORD"',
            )
    return ServerSettings(
        mechanisms,
        users,
        {each: config.integer("connections.max.reauth.ms", each) for each in mechanisms},
        config.integer("sasl.server.max.receive.size"),
        config.integer("connection.failed.authentication.delay.ms"),
        _oauth(config) if OAUTHBEARER in mechanisms else None,
    )


def _oauth(config: ListenerConfig) -> OAuthSettings:
    if config.text(_JAAS, OAUTHBEARER):
        _login(config, OAUTHBEARER)
    url = config.text(_JWKS, OAUTHBEARER) or ""
    if not url.startswith(("file:", "http://", "https://")):
        raise ConfigError(
            _JWKS,
            url,
            "the URL (https, http, file) of the keys that verify tokens: without them "
            f"listener {config.name} would let in nobody",
        )
    return OAuthSettings(
        url,
        config.integer("sasl.oauthbearer.jwks.endpoint.refresh.ms", OAUTHBEARER),
        config.names("sasl.oauthbearer.expected.audience", OAUTHBEARER),
        config.text("sasl.oauthbearer.expected.issuer", OAUTHBEARER),
        config.integer("sasl.oauthbearer.clock.skew.seconds", OAUTHBEARER) * 1000,
        config.text("sasl.oauthbearer.sub.claim.name", OAUTHBEARER) or "sub",
    )


def _no_token(login: OAuthLogin) -> Callable[[], str]:
    raise ConfigError(_ENDPOINT, login.url, "", "access tokens are for a node's own connections")


def client_login(
    config: ListenerConfig, setting: str, access_token: TokenSource = _no_token
) -> NewClient:
    """How this node authenticates itself to listeners of that name; `setting` names the
    mechanism. `access_token`: what retrieves those of OAUTHBEARER. Raises ConfigError.
    """
    mechanism = config.text(setting) or ""
    _check_mechanism(setting, mechanism, config)
    _check_classes(config, mechanism)
    if mechanism == OAUTHBEARER:
        token = access_token(_oauth_login(config))
        return lambda nonce: OAuthClient(token())
    options = _login(config, mechanism).options
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        raise ConfigError(
            _jaas_name(config, mechanism),
            HIDDEN,
            "username= and password=, by which this node authenticates itself to other nodes",
        )
    if mechanism == plain.MECHANISM:
        return lambda nonce: PlainClient(user, password)
    token_authenticated = options.get("tokenauth", "").lower() == "true"
    return lambda nonce: ScramClient(
        MECHANISMS[mechanism], user, password, nonce, token_authenticated
    )


def _oauth_login(config: ListenerConfig) -> OAuthLogin:
    """The credentials have settings of their own, before those of the JAAS line."""
    retriever = config.text(_RETRIEVER, OAUTHBEARER) or _BY_DEFAULT
    if retriever not in (_BY_DEFAULT, _BY_FILE, _BY_CREDENTIALS):
        raise ConfigError(
            _RETRIEVER,
            retriever,
            f"one of {_BY_DEFAULT}, {_BY_FILE}, {_BY_CREDENTIALS} (no class is ever loaded by its "
            f"name), for listener {config.name}",
        )
    url = config.text(_ENDPOINT, OAUTHBEARER) or ""
    is_file = url.startswith("file:")
    if not is_file and not url.startswith("https://") and not _NEAR.match(url):
        raise ConfigError(
            _ENDPOINT,
            url,
            "the https URL of the endpoint, or the file: URL of a token, by which this node "
            f"logs in to listener {config.name}",
        )
    if retriever != _BY_DEFAULT and is_file != (retriever == _BY_FILE):
        raise ConfigError(_ENDPOINT, url, f"a URL that {retriever} takes")
    options = _login(config, OAUTHBEARER).options if config.text(_JAAS, OAUTHBEARER) else {}
    if is_file:
        return OAuthLogin(url)
    setting = "sasl.oauthbearer.client.credentials.client."
    client_id = config.text(f"{setting}id", OAUTHBEARER) or options.get("clientId")
    secret = config.text(f"{setting}secret", OAUTHBEARER) or options.get("clientSecret")
    if not client_id or not secret:
        raise ConfigError(
            _jaas_name(config, OAUTHBEARER),
            HIDDEN,
            f"clientId= and clientSecret= (or {setting}id and .secret), by which this node gets "
            "a token",
        )
    scope = config.text("sasl.oauthbearer.scope", OAUTHBEARER) or options.get("scope", "")
    return OAuthLogin(url, client_id, secret, scope)


def _choices(config: ListenerConfig) -> str:
    return f"{', '.join(SUPPORTED)}, for listener {config.name}"


def _check_mechanism(setting: str, mechanism: str, config: ListenerConfig) -> None:
    if mechanism == "GSSAPI":
        raise ConfigError(
            setting,
            mechanism,
            "",
            f"Kerberos (GSSAPI, Kafka's default) is not supported; set {_choices(config)}",
        )
    if mechanism not in SUPPORTED:
        raise ConfigError(setting, mechanism, _choices(config))


def _check_classes(config: ListenerConfig, mechanism: str) -> None:
    for each in _CLASSES:
        named = config.text(each, mechanism)
        if named and not (mechanism == OAUTHBEARER and named in _VALIDATORS):
            raise ConfigError(
                each,
                named,
                "",
                f"no class is ever loaded by its name; remove it from listener {config.name}",
            )


def _jaas_name(config: ListenerConfig, mechanism: str) -> str:
    return f"{LISTENER_PREFIX}{config.name.lower()}.{mechanism.lower()}.{_JAAS}"


def _login(config: ListenerConfig, mechanism: str) -> jaas.LoginModule:
    name, module = _jaas_name(config, mechanism), _MODULE_OF[mechanism]
    line = config.text(_JAAS, mechanism)
    if not line:
        raise ConfigError(name, "", f'{module} required OPTION="VALUE" ...;')
    try:
        found = jaas.parse_jaas(line)
    except jaas.JaasError as error:
        raise ConfigError(name, HIDDEN, str(error)) from None
    if found.module != module:
        raise ConfigError(name, HIDDEN, f"{module}, the login module of {mechanism}")
    return found
