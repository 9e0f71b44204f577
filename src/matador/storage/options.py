"""The options of an object store: checked by name, and never shown.

The names are those of delta-rs, which are also those of Polars and of the environment variables:
``AWS_ACCESS_KEY_ID`` and ``aws_access_key_id`` are the same. Missing options come from the
environment, the profile or the role of the machine, through delta-rs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from matador.errors import ConfigurationError
from matador.model.options import suggestion

_CLIENT = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "user_agent"),
        *("max_retries", "retry_timeout"),
    }
)
_S3 = frozenset(
    {
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region"),
        *("aws_default_region", "aws_endpoint_url", "aws_allow_http", "aws_skip_signature"),
        *("aws_virtual_hosted_style_request", "aws_conditional_put", "aws_profile"),
        *("aws_web_identity_token_file", "aws_role_arn", "aws_role_session_name"),
        *("aws_imdsv1_fallback", "aws_metadata_endpoint", "aws_unsigned_payload"),
        *("aws_server_side_encryption", "aws_sse_kms_key_id", "aws_sse_bucket_key_enabled"),
        *("aws_request_payer", "aws_s3_express", "aws_checksum_algorithm"),
        *("aws_s3_locking_provider", "delta_dynamo_table_name", "aws_endpoint_url_dynamodb"),
    }
)
_GOOGLE = frozenset(
    {
        *("google_service_account", "google_service_account_path", "google_service_account_key"),
        *("google_application_credentials", "google_skip_signature", "google_bearer_token"),
    }
)
_AZURE = frozenset(
    {
        *("azure_storage_account_name", "azure_storage_account_key", "azure_storage_access_key"),
        *("azure_storage_client_id", "azure_storage_client_secret", "azure_storage_tenant_id"),
        *("azure_client_id", "azure_client_secret", "azure_tenant_id", "azure_storage_token"),
        *("azure_storage_sas_key", "azure_storage_sas_token", "azure_storage_authority_host"),
        *("azure_storage_endpoint", "azure_storage_use_emulator", "azure_use_azure_cli"),
        *("azure_msi_endpoint", "azure_identity_endpoint", "azure_object_id"),
        *("azure_msi_resource_id", "azure_federated_token_file", "azure_skip_signature"),
        *("azure_use_fabric_endpoint", "azure_disable_tagging", "azure_container_name"),
    }
)
_KNOWN: Mapping[str, frozenset[str]] = {
    "s3": _S3 | _CLIENT,
    "gs": _GOOGLE | _CLIENT,
    "az": _AZURE | _CLIENT,
    "abfs": _AZURE | _CLIENT,
    "abfss": _AZURE | _CLIENT,
    "hdfs": frozenset(),
}
_PREFIXES = re.compile(r"(dfs|fs|hadoop)\.")  # of HDFS: the names of its own configuration
_HARMLESS = frozenset({"true", "false", ""})
_SHORTEST_SECRET = 4


class StorageOptions(Mapping[str, str]):
    """Options of a store. Its repr only shows names. Hashed and pickled.

    Raises:
        ConfigurationError: the store has no such option; the error does not quote its value.
    """

    __slots__ = ("_items",)

    def __init__(self, scheme: str = "", given: Mapping[str, Any] | None = None) -> None:
        known = _KNOWN.get(scheme, frozenset[str]())
        items: dict[str, str] = {}
        for name, value in (given or {}).items():
            own = scheme == "hdfs" and _PREFIXES.match(name)
            key = name if own else name.lower()
            if not own and key not in known:
                raise ConfigurationError(
                    f"storage option {name!r} is unknown for {scheme or 'a local folder'}"
                    f"{'://' if scheme else ''}{suggestion(key, sorted(known))}"
                )
            items[key] = str(value).lower() if isinstance(value, bool) else str(value)
        self._items = tuple(sorted(items.items()))

    def __getitem__(self, name: str) -> str:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(key for key, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._items == other._items

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{key}=…' for key in self)})"

    def hidden_in(self, text: str) -> str:
        """A text without the values of options, in case a library quotes them."""
        for value in sorted(self.values(), key=len, reverse=True):
            if len(value) >= _SHORTEST_SECRET and value not in _HARMLESS and not _is_url(value):
                text = text.replace(value, "…")
        return text


NO_OPTIONS = StorageOptions()


def impatient(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with short timeouts for an unreachable store, because the caller retries.

    By default, delta-rs tries for three minutes.
    """
    known = _KNOWN.get(url.partition("://")[0], frozenset[str]())
    return {**({"retry_timeout": "15s"} if "retry_timeout" in known else {}), **given}


def _is_url(value: str) -> bool:
    return value.startswith(("http://", "https://")) and "@" not in value
