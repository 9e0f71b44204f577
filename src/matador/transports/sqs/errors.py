"""The errors of botocore and of SQS, translated.

Temporary failures become a ``NotConnectedError`` or a ``SendFailedError``: the service was not
reached, failed, or throttled the call. All others are permanent: a missing queue, an expired
receipt, a message that SQS rejects, missing permissions, an unusable key.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from botocore import exceptions as aws

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    QueueNotFoundError,
    SendRefusedError,
    SendUnconfirmedError,
    TransportError,
    UnstorableError,
)
from matador.transports.kit.errors import lease_lost

_PREFIX = "AWS.SimpleQueueService."
_MISSING = {"QueueDoesNotExist", "NonExistentQueue"}
_RECEIPT = {"ReceiptHandleIsInvalid", "InvalidReceiptHandle", "MessageNotInflight"}
_UNSTORABLE = {
    *("InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MessageTooLong"),
    *("BatchRequestTooLong", "MissingParameter", "UnsupportedOperation", "ValidationException"),
}
_THROTTLED = {
    *("Throttling", "ThrottlingException", "RequestThrottled", "RequestThrottledException"),
    *("TooManyRequestsException", "OverLimit", "SlowDown", "KmsThrottled", "PurgeQueueInProgress"),
    *("QueueDeletedRecently", "RequestLimitExceeded", "BandwidthLimitExceeded"),
}
_SERVICE = {
    *("InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable"),
    *("ServiceUnavailableException", "RequestTimeout", "RequestTimeoutException"),
}
_CREDENTIALS = {
    *("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"),
    *("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "MissingAuthenticationToken"),
    *("IncompleteSignature", "RequestExpired", "InvalidSecurity", "OptInRequired"),
}
_ACCESS = {"AccessDenied", "AccessDeniedException", "AuthorizationError", "InvalidAddress"}
# Raised by botocore before anything was sent.
_NOT_CONFIGURED = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.ProfileNotFound,
    aws.NoRegionError,
    aws.TokenRetrievalError,
    aws.ConfigParseError,
)
_NETWORK = (aws.HTTPClientError, aws.ConnectionError, OSError, asyncio.TimeoutError)


def is_gone(error: BaseException) -> bool:
    """Whether the service could not be reached, or did not answer."""
    return isinstance(error, _NETWORK) and not isinstance(error, aws.SSLError)


def is_throttled(error: BaseException) -> bool:
    """Whether the service throttled a call, so that it was not executed."""
    return isinstance(error, aws.ClientError) and code_of(error) in _THROTTLED


def has_answered(error: BaseException) -> bool:
    """Whether this is a reply of the service to an authenticated caller."""
    return isinstance(error, aws.ClientError) and code_of(error) not in (
        _CREDENTIALS | _SERVICE | _THROTTLED
    )


def code_of(error: aws.ClientError) -> str:
    """The code of the service without its prefix."""
    return str(_response(error).get("Error", {}).get("Code", "")).removeprefix(_PREFIX)


def _response(error: aws.ClientError) -> dict[str, Any]:
    return cast("dict[str, Any]", getattr(error, "response", {}))


def translate(
    error: BaseException, where: str, *, queue: str = "", opening: bool = False
) -> MatadorError:
    """The error of this package for ``error``, which becomes its cause."""
    if isinstance(error, MatadorError):
        return error
    made = _translate(error, where, queue, opening)
    made.__cause__ = error
    return made


def _translate(error: BaseException, where: str, queue: str, opening: bool) -> MatadorError:
    unsaid = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    said = f"{where}: {str(error) or unsaid}"
    if isinstance(error, aws.ClientError):
        status = int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        found = refused(code_of(error), said, queue=queue, sender_fault=status < 500)
        return ConnectionFailedError(str(found)) if opening else found
    if isinstance(error, _NOT_CONFIGURED):
        hint = (
            "name the region in the address (sqs://eu-west-1) or in AWS_REGION"
            if isinstance(error, aws.NoRegionError)
            else "configure AWS credentials: AWS_ACCESS_KEY_ID, AWS_PROFILE, ~/.aws or a role"
        )
        return (ConnectionFailedError if opening else TransportError)(f"{said}; {hint}")
    if opening:
        return ConnectionFailedError(f"cannot reach {said}; check the region and the endpoint")
    if is_gone(error):
        return SendUnconfirmedError(f"no answer, so the outcome is unknown: {said}")
    if isinstance(error, aws.ParamValidationError):
        return UnstorableError(said)
    return TransportError(said)


def refused(code: str, said: str, *, queue: str = "", sender_fault: bool = True) -> MatadorError:
    """The error for a code of SQS: of a call, or of one entry of a batch."""
    code = code.removeprefix(_PREFIX)
    if code in _MISSING:
        return QueueNotFoundError(f"there is no queue {queue!r}: {said}")
    if code in _RECEIPT:
        return lease_lost(queue)
    if code in _THROTTLED:
        return SendRefusedError(f"SQS has throttled the call; try again later: {said}")
    if code in _CREDENTIALS:
        return TransportError(f"{said}; check the AWS credentials and the machine's clock")
    if code in _ACCESS:
        return TransportError(f"{said}; allow this action in the IAM policy and the queue's policy")
    if code.startswith(("Kms", "KMS")):
        return TransportError(f"{said}; check the KMS key of the queue and the rights to use it")
    if code in _UNSTORABLE:
        return UnstorableError(said)
    if code in _SERVICE or not sender_fault:
        return SendUnconfirmedError(f"SQS has failed, so the outcome is unknown: {said}")
    return TransportError(f"{said} ({code})")
