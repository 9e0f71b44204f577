"""Every error of botocore and SQS becomes a named one: transient, or for good."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from botocore import exceptions as aws

from matador.errors import (
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendFailedError,
    SendRefusedError,
    SendUnconfirmedError,
    TransportError,
    UnstorableError,
)
from matador.transports.sqs.errors import has_answered, is_gone, translate

TRANSIENT = (NotConnectedError, SendFailedError)


def client_error(code: str, status: int = 400) -> aws.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "said"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return aws.ClientError(response, "SendMessage")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 400, SendRefusedError),
        ("RequestThrottled", 403, SendRefusedError),
        ("OverLimit", 403, SendRefusedError),
        ("KmsThrottled", 400, SendRefusedError),
        ("ServiceUnavailable", 503, SendUnconfirmedError),
        ("InternalError", 500, SendUnconfirmedError),
        ("Whatever", 502, SendUnconfirmedError),
        ("QueueDoesNotExist", 400, QueueNotFoundError),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, QueueNotFoundError),
        ("ReceiptHandleIsInvalid", 404, LeaseLostError),
        ("InvalidMessageContents", 400, UnstorableError),
        ("BatchRequestTooLong", 400, UnstorableError),
        ("AccessDenied", 403, TransportError),
        ("KmsAccessDenied", 400, TransportError),
        ("ExpiredToken", 403, TransportError),
        ("Whatever", 400, TransportError),
    ],
)
def test_codes_have_their_errors(code: str, status: int, kind: type[MatadorError]) -> None:
    error = client_error(code, status)
    found = translate(error, "SQS in nowhere", queue="shop.events")
    assert type(found) is kind
    assert found.__cause__ is error
    assert isinstance(found, TRANSIENT) == (kind in (SendRefusedError, SendUnconfirmedError))


def test_what_keeps_us_out_fails_the_connection() -> None:
    for error in (client_error("InvalidClientTokenId", 403), aws.NoCredentialsError()):
        assert not has_answered(error)
        assert isinstance(translate(error, "SQS", opening=True), ConnectionFailedError)
    assert has_answered(client_error("AccessDenied", 403)), "it may still send"


def test_no_answer_leaves_the_outcome_open() -> None:
    error = aws.ReadTimeoutError(endpoint_url="http://x")
    assert is_gone(error)
    assert isinstance(translate(error, "SQS"), SendUnconfirmedError)
    assert is_gone(ConnectionResetError())


def test_every_error_of_botocore_is_translated() -> None:
    """None escapes, and none that is raised before a call counts as a lost connection."""
    kinds = [kind for _, kind in inspect.getmembers(aws, inspect.isclass)]
    found = {kind for kind in kinds if issubclass(kind, aws.BotoCoreError | aws.ClientError)}
    assert len(found) > 50
    for kind in found:
        error = kind.__new__(kind)
        Exception.__init__(error, "said")
        assert isinstance(translate(error, "SQS"), MatadorError)
        assert isinstance(translate(error, "SQS", opening=True), ConnectionFailedError)
