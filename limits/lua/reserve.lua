-- reserve charges a cost in all scopes, or in none.
-- KEYS: the attempt's record, then for each scope its hash and its slots.
-- ARGV: attempt, time in µs (0: Redis' own), cost ×3, ahead ×3, record's and
-- lease's life in ms, whether to take slots, then for each scope limit, burst
-- and whole of each bucket, and its slots (0: no limit).
-- Returns: admitted, number, slots taken, time in ms, then for each scope the
-- slots in use, and for each bucket what is used and as of when.
local id, micros = ARGV[1], clock(tonumber(ARGV[2]))
local now = math.floor(micros / 1000)
local cost = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])}
local ahead = {tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])}
local record_ms, lease_ms, want = ARGV[9], tonumber(ARGV[10]), ARGV[11] == '1'
local n = (#KEYS - 1) / 2
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.error_reply('PENSTOCK attempt is over') end

local function arg(i, j) return tonumber(ARGV[11 + (i - 1) * 13 + j]) end
local scopes, ok, seq = {}, true, micros
for i = 1, n do
  local s = load(KEYS[i * 2])
  scopes[i] = s
  prune(s, micros)
  for k = 1, 4 do
    local b, limit, burst = s.b[k], arg(i, k * 3 - 2), arg(i, k * 3 - 1)
    if limit > 0 then
      drain(b, now)
      b.limit, b.burst = limit, burst
      ok = admits(b, of(cost, k), of(ahead, k), burst, arg(i, k * 3)) and ok
    end
  end
  seq = math.max(seq, s.last + 1)
end

local in_use, free = {}, true
for i = 1, n do
  in_use[i] = 0
  local limit = arg(i, 13)
  if limit > 0 then
    in_use[i] = slots_used(KEYS[i * 2 + 1], now)
    free = free and in_use[i] < limit
  end
end
local slotted = ok and want and free

local masks = {}
for i = 1, n do
  local s, mask = scopes[i], 0
  if ok then
    local newest = newest_of(s)
    for k = 1, 4 do
      local counts = arg(i, k * 3 - 2) > 0
      push(s.b[k], seq, counts and of(cost, k) * UNIT or 0, newest)
      if counts then mask = mask + 2 ^ (k - 1) end
    end
    s.last = seq
    s.live = s.live .. struct.pack('<d', seq)
    for c = 1, 3 do s.held[c] = s.held[c] + cost[c] end
  end
  masks[i] = mask
  save(s, now)
  if slotted and arg(i, 13) > 0 then
    redis.call('ZADD', KEYS[i * 2 + 1], now + lease_ms, id)
    redis.call('PEXPIRE', KEYS[i * 2 + 1], lease_ms + 1000)
  end
end
if ok then redis.call('SET', KEYS[1], cmsgpack.pack({seq, masks}), 'PX', record_ms) end

local reply = {ok and 1 or 0, seq, slotted and 1 or 0, now}
for i = 1, n do
  reply[#reply + 1] = in_use[i]
  for k = 1, 4 do
    reply[#reply + 1] = scopes[i].b[k].used
    reply[#reply + 1] = scopes[i].b[k].at
  end
end
return reply
