"""SaslHandshake (17), SaslAuthenticate (36): authentication of a connection;
DescribeUserScramCredentials (50), AlterUserScramCredentials (51): users of SCRAM.

SaslHandshake: 1 is followed by SaslAuthenticate instead of bare tokens (KIP-152). SaslAuthenticate:
1 session lifetime (KIP-368); 2 flexible.
"""

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    binary,
    int8,
    int16,
    int32,
    int64,
    string,
)


class SaslHandshakeRequest(Request, api_key=17, versions="0-1"):
    mechanism: str = string("0+")


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


class SaslAuthenticateRequest(Request, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary("0+")


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = binary("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)


class UserName(Struct):
    name: str = string("0+")


class DescribeUserScramCredentialsRequest(Request, api_key=50, versions="0", flexible="0+"):
    users: list[UserName] | None = array(UserName, "0+", nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "0+"
    )


class ScramCredentialDeletion(Struct):
    name: str = string("0+")
    mechanism: int = int8("0+")


class ScramCredentialUpsertion(Struct):
    name: str = string("0+")
    mechanism: int = int8("0+")
    iterations: int = int32("0+")
    salt: bytes = binary("0+")
    salted_password: bytes = binary("0+")


class AlterUserScramCredentialsRequest(Request, api_key=51, versions="0", flexible="0+"):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")


class AlterUserScramCredentialsResult(Struct):
    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Response, api_key=51, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")
