"""What Redis runs for a tenant's limits: `core.tenancy.memory_limits` in Lua, call by call.

Each script is one atomic step of Redis, so that gateways that ask at the same time are counted
one after the other. All numbers stay below 2**53 (`core.tenancy.bucket`), so that Lua's are
exact; they are written as whole numbers, because Lua would shorten them. tests/conformance checks
that both stores answer alike.

KEYS of `enter`, `reserve` and `settle`: the tenant's buckets (a hash), its slots (a sorted set:
claim to the end of its lease), what it spent (a hash by month), the claim. The claim is a text of
five words: when its request was counted, its tokens, when they were taken, its cost and in which
month; "-" for what there is none of.
"""

import hashlib
from typing import NamedTuple

from headway.core.tenancy.bucket import HELD_MINUTES, MAX_LOWS, MINUTE_MS, UNIT
from headway.core.tenancy.limits import LEASE_S, SLOT_RETRY_S

CLAIM_KEPT_MS = 86_400_000  # a claim that nobody settles or renews; its slot is free long before

_SHARED = (
    f"""
local UNIT, MINUTE, HELD, MAX_LOWS = {UNIT}, {MINUTE_MS}, {HELD_MINUTES}, {MAX_LOWS}
local LEASE, SLOT_RETRY = {int(LEASE_S * 1000)}, {int(SLOT_RETRY_S * 1000)}
local CLAIM_KEPT = {CLAIM_KEPT_MS}
"""
    + """
local function whole(number) return string.format('%.0f', number) end

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local now = clock(ARGV[1])
"""
)

_BUCKET = """
local function ceiling(number, by) return math.floor((number + by - 1) / by) end

local function was_at(bucket, level)
  local since = nil
  while #bucket.low > 0 and bucket.low[#bucket.low] > level do
    since = table.remove(bucket.since)
    table.remove(bucket.low)
  end
  if since then
    table.insert(bucket.since, since)
    table.insert(bucket.low, level)
  end
end

local function read(key, field, limit)
  local words = {}
  for word in string.gmatch(redis.call('HGET', key, field) or '', '%d+') do
    table.insert(words, tonumber(word))
  end
  local bucket = {
    used = words[1] or 0, at = words[2] or 0, limit = words[3] or limit or 1, since = {}, low = {}
  }
  for i = 4, #words, 2 do
    table.insert(bucket.since, words[i])
    table.insert(bucket.low, words[i + 1])
  end
  if now > bucket.at then
    local passed = math.min(now - bucket.at, HELD * MINUTE)
    bucket.used = math.max(0, bucket.used - passed * bucket.limit)
    bucket.at = now
    was_at(bucket, bucket.used)
  end
  return bucket
end

local function write(key, field, bucket)
  local words = {whole(bucket.used), whole(bucket.at), whole(bucket.limit)}
  for i = 1, #bucket.low do
    table.insert(words, whole(bucket.since[i]))
    table.insert(words, whole(bucket.low[i]))
  end
  redis.call('HSET', key, field, table.concat(words, ' '))
  redis.call('PEXPIRE', key, (HELD + 1) * MINUTE)
end

local function limited(key, field, limit)
  if not limit then return nil end
  local bucket = read(key, field)
  local changed = bucket.limit ~= limit and bucket.used > 0
  bucket.limit = limit
  bucket.used = math.min(bucket.used, HELD * UNIT * limit)
  was_at(bucket, bucket.used)
  if changed then write(key, field, bucket) end
  return bucket
end

local function wait(bucket, count)
  if count > bucket.limit then return -1 end
  return math.max(0, ceiling(bucket.used + (count - bucket.limit) * UNIT, bucket.limit))
end

local function forget_one(bucket)
  local least, index = nil, nil
  for i = 2, #bucket.low do
    local gap = bucket.low[i] - bucket.low[i - 1]
    if least == nil or gap < least then least, index = gap, i end
  end
  table.remove(bucket.since, index)
  table.remove(bucket.low, index)
end

local function take(bucket, count)
  bucket.used = bucket.used + count * UNIT
  local last = #bucket.low
  if last > 0 and bucket.since[last] == bucket.at then
    bucket.low[last] = bucket.used
  else
    table.insert(bucket.since, bucket.at)
    table.insert(bucket.low, bucket.used)
    if #bucket.low > MAX_LOWS then forget_one(bucket) end
  end
  return bucket.at
end

local function give_back(bucket, count, taken)
  local index = #bucket.low
  while index >= 1 and bucket.since[index] > taken do index = index - 1 end
  if index < 1 then return end
  local back = math.min(count * UNIT, bucket.low[index])
  bucket.used = bucket.used - back
  for i = index, #bucket.low do bucket.low[i] = bucket.low[i] - back end
  while index > 1 and bucket.low[index - 1] >= bucket.low[index] do
    table.remove(bucket.low, index - 1)
    table.remove(bucket.since, index)
    index = index - 1
  end
end

local function owe(bucket, count)
  local most = HELD * UNIT * bucket.limit
  bucket.used = math.min(bucket.used + count * UNIT, math.max(bucket.used, most))
end

local function standing(answer, bucket)
  if bucket then
    table.insert(answer, math.floor(math.max(0, bucket.limit * UNIT - bucket.used) / UNIT))
    table.insert(answer, ceiling(bucket.used, bucket.limit))
  else
    table.insert(answer, -1)
    table.insert(answer, 0)
  end
end
"""

_MONTH = """
local function month(first)
  local at = first
  while at < first + 2 and tonumber(ARGV[at + 1]) <= now do at = at + 1 end
  return ARGV[at], tonumber(ARGV[at + 1])
end

local function spent(key, of) return tonumber(redis.call('HGET', key, of) or '0') end

local function spend(key, of, micros, first)
  redis.call('HSET', key, of, whole(math.max(0, spent(key, of) + micros)))
  for _, other in ipairs(redis.call('HKEYS', key)) do
    if tonumber(other) < tonumber(ARGV[first]) then redis.call('HDEL', key, other) end
  end
  redis.call('PEXPIRE', key, tonumber(ARGV[first + 3]) - now)
end
"""

# ARGV: time or "", then the limits (each may be ""), claim, tokens, cost, four months.
# Returns: which limit refused (0: none), ms to wait (-1: for ever), then what is left of requests
# (-1: no such limit) and ms until all are, the same of tokens, what was spent this month.
_ASKED = """
local per_minute, tokens_per_minute = tonumber(ARGV[2]), tonumber(ARGV[3])
local slots, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local id, tokens, cost = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local requests = limited(KEYS[1], 'requests', per_minute)
local bucket = limited(KEYS[1], 'tokens', tokens_per_minute)
local this, following = month(9)

local function answer(refused, wait_ms)
  local result = {refused, wait_ms}
  standing(result, requests)
  standing(result, bucket)
  table.insert(result, spent(KEYS[3], this))
  return result
end
"""

_ENTER = """
if redis.call('EXISTS', KEYS[4]) == 1 then return answer(0, 0) end
if requests then
  local wait_ms = wait(requests, 1)
  if wait_ms ~= 0 then return answer(1, wait_ms) end
end
if slots then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now))
  if redis.call('ZCARD', KEYS[2]) >= slots then return answer(3, SLOT_RETRY) end
end
local entered = '-'
if requests then
  entered = whole(take(requests, 1))
  write(KEYS[1], 'requests', requests)
end
if slots then
  redis.call('ZADD', KEYS[2], whole(now + LEASE), id)
  redis.call('PEXPIRE', KEYS[2], LEASE + MINUTE)
end
redis.call('SET', KEYS[4], entered .. ' - - - -', 'PX', CLAIM_KEPT)
return answer(0, 0)
"""

_RESERVE = """
local claim = redis.call('GET', KEYS[4]) or '- - - - -'
local entered, _, _, reserved = string.match(claim, '(%S+) (%S+) (%S+) (%S+)')
if reserved ~= '-' then return answer(0, 0) end

local function leave()
  redis.call('DEL', KEYS[4])
  redis.call('ZREM', KEYS[2], id)
  if requests and entered ~= '-' then
    give_back(requests, 1, tonumber(entered))
    write(KEYS[1], 'requests', requests)
  end
end

if bucket then
  local wait_ms = wait(bucket, tokens)
  if wait_ms ~= 0 then
    leave()
    return answer(2, wait_ms)
  end
end
if budget and cost > 0 and spent(KEYS[3], this) + cost > budget then
  leave()
  if cost > budget then return answer(4, -1) end
  return answer(4, following - now)
end
local taken = '-'
if bucket then
  taken = whole(take(bucket, tokens))
  write(KEYS[1], 'tokens', bucket)
end
if cost > 0 then spend(KEYS[3], this, cost, 9) end
claim = table.concat({entered, whole(tokens), taken, whole(cost), this}, ' ')
redis.call('SET', KEYS[4], claim, 'PX', CLAIM_KEPT)
return answer(0, 0)
"""

# ARGV: time or "", claim, tokens and cost that it used, four months, tokens a minute or "".
# Returns 1 when the claim had reserved, and so its cost is counted; else 0.
_SETTLE = """
local claim = redis.call('GET', KEYS[4])
if not claim then return 0 end
redis.call('DEL', KEYS[4])
redis.call('ZREM', KEYS[2], ARGV[2])
local _, tokens, taken, cost, of = string.match(claim, '(%S+) (%S+) (%S+) (%S+) (%S+)')
if cost == '-' then return 0 end
local more_cost = tonumber(ARGV[4]) - tonumber(cost)
if more_cost ~= 0 then spend(KEYS[3], of, more_cost, 5) end
if taken ~= '-' then
  local bucket = read(KEYS[1], 'tokens', tonumber(ARGV[9]))
  local more = tonumber(ARGV[3]) - tonumber(tokens)
  if more <= 0 then give_back(bucket, -more, tonumber(taken)) else owe(bucket, more) end
  write(KEYS[1], 'tokens', bucket)
end
return 1
"""

# KEYS: a tenant's slots, then claims. ARGV: time or "", then the claims' ids.
_RENEW = """
for i = 2, #KEYS do
  if redis.call('PEXPIRE', KEYS[i], CLAIM_KEPT) == 1 then
    redis.call('ZADD', KEYS[1], whole(now + LEASE), ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[1], LEASE + MINUTE)
return 0
"""

# KEYS: what a tenant spent. ARGV: time or "", micros to add, four months. Returns the month's sum.
_SPEND = """
local this = month(3)
if tonumber(ARGV[2]) ~= 0 then spend(KEYS[1], this, tonumber(ARGV[2]), 3) end
return spent(KEYS[1], this)
"""

# The same, with what is known to have been spent instead of what is to be added.
_AT_LEAST = """
local this = month(3)
local missing = tonumber(ARGV[2]) - spent(KEYS[1], this)
if missing > 0 then spend(KEYS[1], this, missing, 3) end
return spent(KEYS[1], this)
"""

# KEYS: the gateways. ARGV: time or "", a gateway's name. Returns how many were here lately.
_ANNOUNCE = """
redis.call('ZADD', KEYS[1], whole(now + LEASE), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
redis.call('PEXPIRE', KEYS[1], LEASE + MINUTE)
return redis.call('ZCARD', KEYS[1])
"""


class Script(NamedTuple):
    """A script, and the name by which Redis knows it once it has seen it."""

    text: str
    sha: str


def _script(*parts: str) -> Script:
    text = "".join((_SHARED, *parts))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ENTER = _script(_BUCKET, _MONTH, _ASKED, _ENTER)
RESERVE = _script(_BUCKET, _MONTH, _ASKED, _RESERVE)
SETTLE = _script(_BUCKET, _MONTH, _SETTLE)
RENEW = _script(_RENEW)
SPEND = _script(_MONTH, _SPEND)
AT_LEAST = _script(_MONTH, _AT_LEAST)
ANNOUNCE = _script(_ANNOUNCE)
