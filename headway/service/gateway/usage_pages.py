"""Usage, lists of requests and the explanation of one, for the operator."""

import msgspec

from headway.core.base.errors import InvalidRequest, NotFound
from headway.core.base.metrics import Outcome
from headway.core.messages.usage import (
    RecordQuery,
    UsageQuery,
    check_span,
    read_groups,
    read_moment,
)
from headway.service.gateway.admin_routes import AdminCall, AdminRoute
from headway.service.gateway.explain import explain
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.pages import Page
from headway.service.gateway.usage_format import usage_csv, usage_list
from headway.service.openai.usage_schema import RequestList

MAX_PAGE = 1000
OUTCOMES = tuple(outcome.value for outcome in Outcome)
FORMATS = ("json", "csv")
USAGE = ("group_by", "from", "to", "tenant", "key", "model", "format")
REQUESTS = ("tenant", "outcome", "model", "since", "before", "limit")
CSV = b"text/csv; charset=utf-8"
NO_STORE = ((b"cache-control", b"no-store"),)


class UsagePages:
    """The calls, answered from a ledger's store; they raise StoreUnavailable too."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def routes(self) -> tuple[AdminRoute, ...]:
        """All of them."""
        return (
            AdminRoute("GET", "/admin/usage", self._usage, USAGE),
            AdminRoute("GET", "/admin/requests", self._requests, REQUESTS),
            # A client's own id may have slashes.
            AdminRoute("GET", "/admin/requests/{id}", self._request, takes_rest=True),
        )

    async def _usage(self, call: AdminCall) -> Page:
        since, until = _moment(call, "from"), _moment(call, "to")
        try:
            check_span(since, until)
        except ValueError as error:
            raise InvalidRequest(f"to {error}.", param="to") from None
        query = UsageQuery(
            group_by=_groups(call),
            since=since,
            until=until,
            tenant=call.query("tenant"),
            key=call.query("key"),
            model=call.query("model"),
        )
        form = call.query("format") or "json"
        if form not in FORMATS:
            raise InvalidRequest(f"format is one of {', '.join(FORMATS)}.", param="format")
        rows = await self._keeper.ask(lambda store: store.usage(query))
        if form == "csv":
            named = (b"content-disposition", b'attachment; filename="usage.csv"')
            body = usage_csv(query.group_by, rows).encode()
            return Page(200, body, CSV, (*NO_STORE, named))
        return _page(usage_list(query.group_by, rows))

    async def _request(self, call: AdminCall) -> Page:
        request_id = call.values[0]
        record = await self._keeper.ask(lambda store: store.find(request_id))
        if record is None:
            raise NotFound(
                "No request of this id is recorded: it has not ended, is older than what is kept, "
                "or nobody was known to have sent it (401)."
            )
        return _page(explain(record))

    async def _requests(self, call: AdminCall) -> Page:
        outcome = call.query("outcome")
        if outcome is not None and outcome not in OUTCOMES:
            raise InvalidRequest(f"outcome is one of {', '.join(OUTCOMES)}.", param="outcome")
        query = RecordQuery(
            tenant=call.query("tenant"),
            outcome=outcome,
            model=call.query("model"),
            since=_moment(call, "since"),
            before=_cursor(call.query("before")),
            limit=_limit(call.query("limit")),
        )
        page = await self._keeper.ask(lambda store: store.page(query))
        after = None if page.next is None else f"{page.next[0]!r}_{page.next[1]}"
        return _page(RequestList(data=page.records, next=after))


def _groups(call: AdminCall) -> tuple[str, ...]:
    text = call.query("group_by")
    try:
        return UsageQuery().group_by if text is None else read_groups(text)
    except ValueError as error:
        raise InvalidRequest(f"group_by {error}.", param="group_by") from None


def _moment(call: AdminCall, name: str) -> float | None:
    text = call.query(name)
    try:
        return None if text is None else read_moment(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} {error}.", param=name) from None


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    began, _, request_id = text.partition("_")
    try:
        return read_number(began), request_id
    except ValueError:
        raise InvalidRequest("before is the `next` of the page before.", param="before") from None


def read_number(text: str) -> float:
    """A finite number; raises ValueError."""
    number = float(text)
    if not abs(number) < 1e12:
        raise ValueError(text)
    return number


def _limit(text: str | None) -> int:
    if text is None:
        return RecordQuery().limit
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidRequest(f"limit is a whole number of 1 to {MAX_PAGE}.", param="limit")
    return int(text)


def _page(body: msgspec.Struct) -> Page:
    return Page(200, msgspec.json.encode(body), headers=NO_STORE)
