-- The buckets of bucket.go, on Redis. Every function here has its twin there,
-- and a test plays the same histories on both. Times are milliseconds and
-- amounts are units, 60000 to a token: whole numbers below 2^53.
--
-- A scope is a hash: "m" holds its numbers, "v" the numbers of the charges that
-- are not settled (8 bytes each, ascending), "1" to "4" the layers of its
-- buckets (number and amount, 16 bytes a layer). They are kept packed so that
-- only what changes is read, however many requests are under way.
local UNIT = 60000
local META = '<' .. string.rep('d', 20) -- last, reserved ×3, and per bucket limit, burst, at, used

local function clock(given)
  if given > 0 then return given end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function load(key)
  local v = redis.call('HMGET', key, 'm', 'v', '1', '2', '3', '4')
  local s = {key = key, last = 0, held = {0, 0, 0}, live = v[2] or '', b = {}}
  local m = v[1] and {struct.unpack(META, v[1])}
  if m then
    s.last, s.held = m[1], {m[2], m[3], m[4]}
  end
  for k = 1, 4 do
    if m then
      local o = k * 4
      s.b[k] = {limit = m[o + 1], burst = m[o + 2], at = m[o + 3], used = m[o + 4], l = v[k + 2] or ''}
    else
      s.b[k] = {limit = 0, burst = 0, at = 0, used = 0, l = ''}
    end
  end
  return s
end

-- save keeps a scope until its buckets are full: from then on there is nothing to know.
local function save(s, now)
  local m = {s.last, s.held[1], s.held[2], s.held[3]}
  local ttl = 0
  for k = 1, 4 do
    local b, o = s.b[k], k * 4
    m[o + 1], m[o + 2], m[o + 3], m[o + 4] = b.limit, b.burst, b.at, b.used
    if b.used > 0 and b.limit > 0 then
      ttl = math.max(ttl, math.ceil(b.used / b.limit) + math.max(0, b.at - now))
    end
  end
  redis.call('HSET', s.key, 'm', struct.pack(META, unpack(m)), 'v', s.live,
    '1', s.b[1].l, '2', s.b[2].l, '3', s.b[3].l, '4', s.b[4].l)
  redis.call('PEXPIRE', s.key, string.format('%.0f', ttl + 1000))
end

local function seq_at(l, i) return (struct.unpack('<d', l, i * 16 - 15)) end
local function amount_at(l, i) return (struct.unpack('<d', l, i * 16 - 7)) end

local function pop(b, units)
  b.used = b.used - units
  local l, n = b.l, #b.l / 16
  while units > 0 do
    local a = amount_at(l, n)
    if a > units then
      b.l = string.sub(l, 1, n * 16 - 8) .. struct.pack('<d', a - units)
      return
    end
    units = units - a
    n = n - 1
  end
  b.l = string.sub(l, 1, n * 16)
end

local function drain(b, now)
  local elapsed = now - b.at
  if elapsed <= 0 then
    if elapsed < -5000 then b.at = now end
    return
  end
  b.at = now
  if b.used == 0 or b.limit <= 0 then return end
  if elapsed * b.limit >= b.used then
    b.used, b.l = 0, ''
  else
    pop(b, elapsed * b.limit)
  end
end

local function admits(b, cost, ahead, burst, whole)
  if cost > whole then return false end
  return cost <= 0 or b.used + (math.min(cost, burst) + ahead - burst) * UNIT <= 0
end

local function push(b, seq, units, newest)
  b.used = b.used + units
  local n = #b.l / 16
  if n > 0 and seq_at(b.l, n) > newest then
    b.l = string.sub(b.l, 1, (n - 1) * 16) .. struct.pack('<dd', seq, amount_at(b.l, n) + units)
  elseif units > 0 then
    b.l = b.l .. struct.pack('<dd', seq, units)
  end
end

-- find is the newest layer not newer than seq, 0 if there is none.
local function find(l, seq)
  local lo, hi = 0, #l / 16
  while lo < hi do
    local mid = math.ceil((lo + hi) / 2)
    if seq_at(l, mid) <= seq then lo = mid else hi = mid - 1 end
  end
  return lo
end

local function refund(b, i, units)
  local l, n = b.l, i
  while n > 0 and units > 0 do
    local a = amount_at(l, n)
    local take = math.min(a, units)
    units = units - take
    b.used = b.used - take
    if a > take then
      b.l = string.sub(l, 1, n * 16 - 8) .. struct.pack('<d', a - take) .. string.sub(l, i * 16 + 1)
      return
    end
    n = n - 1
  end
  b.l = string.sub(l, 1, n * 16) .. string.sub(l, i * 16 + 1)
end

local function bequeath(b, i, next)
  local l = b.l
  local top = i == #l / 16
  if next > 0 and (top or next < seq_at(l, i + 1)) then
    b.l = string.sub(l, 1, i * 16 - 16) .. struct.pack('<d', next) .. string.sub(l, i * 16 - 7)
  elseif not top then
    b.l = string.sub(l, 1, i * 16 - 16) .. struct.pack('<dd', seq_at(l, i + 1), amount_at(l, i) + amount_at(l, i + 1))
      .. string.sub(l, i * 16 + 17)
  end
end

local function settle_bucket(b, now, seq, next, newest, fresh, delta)
  drain(b, now)
  local i = find(b.l, seq)
  if i > 0 and delta < 0 then
    refund(b, i, -delta * UNIT)
    i = find(b.l, seq)
  end
  if i > 0 and seq_at(b.l, i) == seq then bequeath(b, i, next) end
  if delta > 0 then
    local add = math.min(delta * UNIT, 2 * b.burst * UNIT - b.used)
    if add > 0 then push(b, fresh, add, newest) end
  end
end

local function newest_of(s)
  if s.live == '' then return 0 end
  return (struct.unpack('<d', s.live, #s.live - 7))
end

-- retire takes seq out of the live ones: whether it was there, and the next.
local function retire(s, seq)
  local lo, hi = 1, #s.live / 8 + 1
  while lo < hi do
    local mid = math.floor((lo + hi) / 2)
    if struct.unpack('<d', s.live, mid * 8 - 7) < seq then lo = mid + 1 else hi = mid end
  end
  local p = lo * 8 - 7
  if p > #s.live or struct.unpack('<d', s.live, p) ~= seq then return false, 0 end
  s.live = string.sub(s.live, 1, p - 1) .. string.sub(s.live, p + 8)
  if p > #s.live then return true, 0 end
  return true, (struct.unpack('<d', s.live, p))
end

-- prune ends charges of gateways that crashed, after six hours.
local function prune(s, micros)
  while s.live ~= '' do
    local seq = struct.unpack('<d', s.live, 1)
    if seq > micros - 6 * 3600 * 1000000 then return end
    local _, next = retire(s, seq)
    for k = 1, 4 do settle_bucket(s.b[k], math.floor(micros / 1000), seq, next, newest_of(s), 0, 0) end
  end
end

local function of(cost, k)
  if k == 1 then return cost[1] end
  if k == 2 then return cost[2] + cost[3] end
  return cost[k - 1]
end

local function slots_used(key, now)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key)
end
