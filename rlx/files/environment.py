"""Where a bucket's server is and who asks: from the environment variables that each cloud's own tools read.

Where they give no credentials, requests are not signed, which is what public data want.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlx.errors import SourceError
from rlx.files.retry import RetryPolicy
from rlx.secrets_in_urls import harmless

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

CONNECT_S = 10.0
STALL_S = 60.0  # a server that sends nothing for so long has failed
# Any of these, and obstore is left to find the credentials that it is about.
_CREDENTIALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "s3": (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_SKIP_SIGNATURE",
        ),
        "gs": (
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_BEARER_TOKEN",
            "GOOGLE_SKIP_SIGNATURE",
        ),
        "az": (
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ACCESS_KEY",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_TOKEN",
            "AZURE_CLIENT_ID",
            "AZURE_STORAGE_CLIENT_ID",
            "AZURE_FEDERATED_TOKEN_FILE",
            "AZURE_USE_AZURE_CLI",
            "AZURE_STORAGE_USE_EMULATOR",
            "AZURE_SKIP_SIGNATURE",
        ),
    }
)
_GCLOUD_LOGIN = Path("~/.config/gcloud/application_default_credentials.json")
_ENDPOINTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "gs": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }
)


def is_anonymous(scheme: str) -> bool:
    """Return whether the environment holds no credentials for this kind of bucket."""
    if scheme == "gs" and _has_gcloud_login():
        return False
    return not any(os.environ.get(name) for name in _CREDENTIALS[scheme])


def _has_gcloud_login() -> bool:
    try:
        return _GCLOUD_LOGIN.expanduser().exists()
    except (RuntimeError, OSError):  # a user without a home directory, or one that is closed to it
        return False


def endpoint(scheme: str) -> str | None:
    """Return URL of the server, where it is another than the cloud's own."""
    return next((found for name in _ENDPOINTS[scheme] if (found := os.environ.get(name))), None)


def store_for(url: str, policy: RetryPolicy) -> "ObjectStore":
    """Return obstore's store for a URL, configured by the environment.

    Raises:
        SourceError: something is missing or wrong in the URL or in the environment.
    """
    from obstore import store  # noqa: PLC0415  (an extra)
    from obstore.exceptions import BaseError  # noqa: PLC0415

    scheme = urlsplit(url).scheme
    client: ClientConfig = {
        # The default ends every transfer after 30 s, however well it goes.
        "timeout": timedelta(hours=24),
        "read_timeout": timedelta(seconds=STALL_S),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        # Nor are redirects from https to http followed then.
        "allow_http": not (url if scheme in ("http", "https") else endpoint(scheme) or "https:").startswith("https:"),
    }
    retry: RetryConfig = {
        "max_retries": policy.attempts - 1,
        "retry_timeout": timedelta(seconds=policy.max_silence_s),
    }
    try:
        if scheme in ("http", "https"):
            return store.HTTPStore(url, client_options=client, retry_config=retry)
        config: dict[str, Any] = {"skip_signature": True} if is_anonymous(scheme) else {}
        if found := endpoint(scheme):
            config["base_url" if scheme == "gs" else "endpoint"] = found
        kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
        opened: ObjectStore = kind.from_url(url, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError) as exc:  # obstore's own, or of what checks the URL before
        problem = next(iter(str(exc).splitlines()), type(exc).__name__)
        hint = "set AZURE_STORAGE_ACCOUNT_NAME" if "Account must be specified" in problem else None
        raise SourceError(f"{url}: {problem}", hint=hint) from harmless(exc)
    return opened
