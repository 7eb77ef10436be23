"""Users of SCRAM: what the controller decides about their credentials, and what a broker tells of
them.

1. The salted password of a request becomes two keys at once and is stored nowhere.
2. Of one user a request changes one credential: a user who is named twice is refused, and nothing
   of that user changes.
3. Nothing that is described is a secret: mechanisms and iterations only.
4. A salt is not empty and a salted password is as long as the digest. Kafka takes any but an empty
   salted password, which it answers with UNKNOWN_SERVER_ERROR.

Source: Kafka's `ScramControlManager`, `ScramImage`; KIP-554, KIP-900. Not here: permission
(`api/sasl.py`, `api/controller.py`), authentication (`security/sasl/scram.py`).
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.java_numbers import is_digits
from twisted_broker.security.sasl.scram import (
    BY_CODE,
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from twisted_broker.wire.schema import Record

MOST_SALT = 1024
SCRAM_LEVEL = 11  # metadata.version 3.5-IV2
Refusal = tuple[ErrorCode, str]
Change = ScramCredentialDeletion | ScramCredentialUpsertion
_OPTIONS = frozenset({"name", "password", "saltedpassword", "salt", "iterations"})


def credential_record(
    name: str, mechanism: ScramMechanism, credential: ScramCredential
) -> records.UserScramCredentialRecord:
    """As the metadata log has it."""
    return records.UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.code,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def stored_credential(
    image: MetadataImage, mechanism: ScramMechanism, name: str
) -> ScramCredential | None:
    """A user's credential; None where there is none."""
    found = image.scram.get((mechanism.code, name))
    if found is None:
        return None
    return ScramCredential(
        bytes(found.salt), bytes(found.stored_key), bytes(found.server_key), found.iterations
    )


def changes_of(request: AlterUserScramCredentialsRequest) -> list[Change]:
    """Everything that a request wants changed, deletions first."""
    return [*request.deletions, *request.upsertions]


def alter(
    image: MetadataImage, changes: Sequence[Change], times: Counter[str]
) -> tuple[list[Record], AlterUserScramCredentialsResponse]:
    """The records of some of a request's changes, and their answer. `times`: how often the whole
    request names each user. The first mention of a user answers for all: what is wrong with it, or
    that there are others.
    """
    found: list[Record] = []
    results: dict[str, AlterUserScramCredentialsResult] = {}
    for change in changes:
        if change.name in results:
            continue
        refused = _refusal(image, change)
        if refused is None and times[change.name] > 1:
            refused = ErrorCode.DUPLICATE_RESOURCE, "one request changes one credential of a user"
        if refused is None:
            found.append(_record(change))
        code, message = refused or (ErrorCode.NONE, None)
        results[change.name] = AlterUserScramCredentialsResult(
            user=change.name, error_code=code, error_message=message
        )
    return found, AlterUserScramCredentialsResponse(results=list(results.values()))


def refuse_all(
    changes: Sequence[Change], code: ErrorCode, message: str
) -> AlterUserScramCredentialsResponse:
    """The answer that refuses every user of a request."""
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name in dict.fromkeys(change.name for change in changes)
        ]
    )


def _refusal(image: MetadataImage, change: Change) -> Refusal | None:
    if image.metadata_version < SCRAM_LEVEL:
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            f"SCRAM users need metadata.version {SCRAM_LEVEL} or above",
        )
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty"
    if change.mechanism not in BY_CODE:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no mechanism {change.mechanism}"
    if isinstance(change, ScramCredentialDeletion):
        if (change.mechanism, change.name) in image.scram:
            return None
        return ErrorCode.RESOURCE_NOT_FOUND, "the user has no credential of this mechanism"
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations are from {MIN_ITERATIONS} to {MAX_ITERATIONS}",
        )
    wrong = _what_is_wrong(
        BY_CODE[change.mechanism], bytes(change.salted_password), bytes(change.salt)
    )
    return (ErrorCode.UNACCEPTABLE_CREDENTIAL, wrong) if wrong else None


def _what_is_wrong(mechanism: ScramMechanism, salted: bytes, salt: bytes) -> str:
    """Everybody who names the user is sent the salt. Anything else than a whole digest is no salted
    password: whoever made it meant something else, and nobody could log in.
    """
    if not 0 < len(salt) <= MOST_SALT:
        return f"the salt is of 1 to {MOST_SALT} bytes"
    if len(salted) != mechanism.key_bytes:
        return f"the salted password of {mechanism.name} is of {mechanism.key_bytes} bytes"
    return ""


def _record(change: Change) -> Record:
    if isinstance(change, ScramCredentialDeletion):
        return records.RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    mechanism = BY_CODE[change.mechanism]
    credential = credential_of(
        mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations
    )
    return credential_record(change.name, mechanism, credential)


def describe(
    image: MetadataImage, names: Iterable[str] | None
) -> list[DescribeUserScramCredentialsResult]:
    """Of the users `names`; None or none: of all."""
    times = Counter(names or ())
    by_user: dict[str, list[CredentialInfo]] = {}
    for (code, name), credential in sorted(image.scram.items()):
        if not times or name in times:
            info = CredentialInfo(mechanism=code, iterations=credential.iterations)
            by_user.setdefault(name, []).append(info)
    return [_described(name, times[name], by_user.get(name)) for name in sorted(times or by_user)]


def _described(
    name: str, times: int, infos: list[CredentialInfo] | None
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name, error_message="")
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = f"the request names user {name} more than once"
    elif infos is None:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"user {name} has no credential"
    else:
        result.credential_infos = infos
    return result


def parse_user(text: str, random_salt: bytes) -> records.UserScramCredentialRecord:
    """A user as `kafka-storage format --add-scram` takes one:
    `SCRAM-SHA-256=[name=alice,password=alice-secret]`, with `iterations=`, `salt=` (base64), or
    instead of a password `saltedpassword=` (base64).

    ValueError, which names what is wrong, never a secret.
    """
    kind, equals, rest = text.strip().partition("=")
    mechanism = MECHANISMS.get(kind)
    if not equals or mechanism is None or rest[:1] != "[" or rest[-1:] != "]":
        raise ValueError(
            f"takes MECHANISM=[name=NAME,password=PASSWORD], with {' or '.join(MECHANISMS)}"
        )
    options: dict[str, str] = {}
    for part in rest[1:-1].split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in _OPTIONS or name in options:
            raise ValueError(f"takes each of {', '.join(sorted(_OPTIONS))} once")
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        options[name] = value[1:-1] if quoted else value
    if not options.get("name"):
        raise ValueError("needs name=")
    return credential_record(
        options["name"], mechanism, _credential(mechanism, options, random_salt)
    )


def _credential(
    mechanism: ScramMechanism, options: Mapping[str, str], random_salt: bytes
) -> ScramCredential:
    given = options.get("iterations", str(MIN_ITERATIONS))
    if not is_digits(given) or not MIN_ITERATIONS <= int(given) <= MAX_ITERATIONS:
        raise ValueError(f"takes iterations= from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    iterations = int(given)
    salt = _decoded(options, "salt") if "salt" in options else random_salt
    if "password" in options:
        salted = salted_password(mechanism, options["password"], salt, iterations)
    elif "saltedpassword" in options and "salt" in options:
        salted = _decoded(options, "saltedpassword")
    else:
        raise ValueError("needs password=, or saltedpassword= with salt=")
    if wrong := _what_is_wrong(mechanism, salted, salt):
        raise ValueError(f"cannot be: {wrong}")
    return credential_of(mechanism, salted, salt, iterations)


def _decoded(options: Mapping[str, str], name: str) -> bytes:
    try:
        return b64decode(options[name], validate=True)
    except ValueError:
        raise ValueError(f"takes base64 as {name}=") from None
