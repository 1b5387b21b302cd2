"""Description of /admin, which only those are shown who have an admin key."""

from typing import Any

import msgspec

from headway.core.tenancy.administer import KeyView, TenantChange, TenantView
from headway.service.openai.admin_schema import (
    AuditList,
    Deleted,
    EraseBody,
    Erased,
    Exported,
    KeyList,
    NewKeyBody,
    NewTenantBody,
    RotateBody,
    TenantList,
)
from headway.service.openai.answer_schema import ErrorBody
from headway.service.openai.openapi import Endpoint, paths_of
from headway.service.openai.usage_schema import Explanation, RequestList, UsageList

_SCHEMAS = (
    *(TenantView, TenantList, TenantChange, NewTenantBody, Deleted, Erased, EraseBody, Exported),
    *(KeyView, KeyList, NewKeyBody, RotateBody, AuditList, ErrorBody),
    *(UsageList, RequestList, Explanation),
)
_JSON = "application/json"
_READS = ("401", "404", "429", "503")
_WRITES = ("400", "401", "404", "408", "409", "413", "415", "429", "503")
_NAME = (("name", "path"),)
_ID = (("id", "path"),)


def _get(path: str, summary: str, answer: str | None, *parameters: tuple[str, str]) -> Endpoint:
    return Endpoint(
        method="get",
        path=path,
        summary=summary,
        answers={_JSON: answer},
        errors=("400", *_READS),
        parameters=parameters,
    )


# Whoever adds a call to /admin adds it here.
ADMIN_ENDPOINTS: tuple[Endpoint, ...] = (
    _get("/admin/tenants", "All tenants.", "TenantList"),
    Endpoint(
        method="post",
        path="/admin/tenants",
        summary="Make a tenant.",
        body="NewTenantBody",
        answers={_JSON: "TenantView"},
        errors=_WRITES,
        success="201",
    ),
    _get("/admin/tenants/{name}", "One tenant.", "TenantView", *_NAME),
    Endpoint(
        method="patch",
        path="/admin/tenants/{name}",
        summary="Change what is given and leave the rest; limits are changed one by one.",
        body="TenantChange",
        answers={_JSON: "TenantView"},
        errors=_WRITES,
        parameters=_NAME,
        needs_body=False,
    ),
    Endpoint(
        method="delete",
        path="/admin/tenants/{name}",
        summary="Remove a tenant and its keys, but not what it did.",
        answers={_JSON: "Deleted"},
        errors=_READS,
        parameters=_NAME,
    ),
    _get("/admin/tenants/{name}/export", "All that is kept about a tenant.", "Exported", *_NAME),
    Endpoint(
        method="post",
        path="/admin/tenants/{name}/erase",
        summary="Remove all that is kept about a tenant, also when it was deleted.",
        body="EraseBody",
        answers={_JSON: "Erased"},
        errors=_WRITES,
        parameters=_NAME,
    ),
    _get("/admin/tenants/{name}/keys", "A tenant's keys, without secrets.", "KeyList", *_NAME),
    Endpoint(
        method="post",
        path="/admin/tenants/{name}/keys",
        summary="Make a key. This answer alone has it whole.",
        body="NewKeyBody",
        answers={_JSON: "KeyView"},
        errors=_WRITES,
        parameters=_NAME,
        success="201",
        needs_body=False,
    ),
    _get("/admin/keys", "All keys, without secrets.", "KeyList"),
    Endpoint(
        method="post",
        path="/admin/keys/{id}/rotate",
        summary="Make a key in place of this one, which goes on for `overlap_s`.",
        body="RotateBody",
        answers={_JSON: "KeyView"},
        errors=_WRITES,
        parameters=_ID,
        success="201",
        needs_body=False,
    ),
    Endpoint(
        method="post",
        path="/admin/keys/{id}/revoke",
        summary="Refuse a key from now on.",
        answers={_JSON: "KeyView"},
        errors=_READS,
        parameters=_ID,
    ),
    _get(
        "/admin/audit",
        "Who changed what, newest first; `before` an entry's id, at most `limit`.",
        "AuditList",
        *(("tenant", "query"), ("before", "query"), ("limit", "query")),
    ),
    _get(
        "/admin/usage",
        "What was used, by group; as JSON or, with format=csv, as CSV.",
        "UsageList",
        *(("group_by", "query"), ("from", "query"), ("to", "query"), ("tenant", "query")),
        *(("key", "query"), ("model", "query"), ("format", "query")),
    ),
    _get(
        "/admin/requests",
        "Records of requests, the latest first; `before` is the `next` of the page before.",
        "RequestList",
        *(("tenant", "query"), ("outcome", "query"), ("model", "query"), ("since", "query")),
        *(("before", "query"), ("limit", "query")),
    ),
    _get(
        "/admin/requests/{id}",
        "One request explained, by our id or the client's X-Request-Id.",
        "Explanation",
        *_ID,
    ),
    _get("/admin/openapi.json", "This description.", None),
)


def openapi_admin() -> dict[str, Any]:
    """An OpenAPI 3.1 document of /admin."""
    _, components = msgspec.json.schema_components(
        _SCHEMAS, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway: administration",
            "version": "1",
            "description": "Tenants, keys, the audit log and usage. Times are seconds since 1970.",
        },
        "paths": paths_of(ADMIN_ENDPOINTS),
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }
