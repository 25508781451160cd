-- settle ends attempts: each once, however often it is asked.
-- KEYS: for each attempt its record, then for each of its scopes hash and slots.
-- ARGV: time in µs (0: Redis' own), then for each attempt: its name, whether it
-- may come before its reserve does, number of scopes, what was reserved ×3, what
-- was used ×3, and for each scope limit and burst of each bucket.
-- Returns for each attempt 1 if it was settled now.
local micros = clock(tonumber(ARGV[1]))
local now = math.floor(micros / 1000)
local loaded, order, reply = {}, {}, {}
local a, key = 1, 0

local function scope(name)
  local s = loaded[name]
  if not s then
    s = load(name)
    loaded[name] = s
    order[#order + 1] = s
  end
  return s
end

local function charge(s, seq, fresh, mask, cost, delta, args)
  local found, next = retire(s, seq)
  local newest = newest_of(s)
  for k = 1, 4 do
    local b, d = s.b[k], 0
    if math.floor(mask / 2 ^ (k - 1)) % 2 == 1 then d = of(delta, k) end
    if b.limit == 0 and d > 0 then
      -- The scope was full and forgotten meanwhile.
      b.limit, b.burst = tonumber(ARGV[args + k * 2 - 1]), tonumber(ARGV[args + k * 2])
    end
    settle_bucket(b, now, seq, next, newest, fresh, d)
  end
  s.last = math.max(s.last, fresh)
  if found then
    for c = 1, 3 do s.held[c] = s.held[c] - cost[c] end
  end
end

-- What is kept is written before anything is deleted: where memory is out, the
-- first write fails and nothing has happened.
local over, gone, early_ones = {}, {}, {}
while a < #ARGV do
  local id, early, n = ARGV[a + 1], ARGV[a + 2] == '1', tonumber(ARGV[a + 3])
  local cost, delta = {}, {}
  for c = 1, 3 do
    cost[c] = tonumber(ARGV[a + 3 + c])
    delta[c] = tonumber(ARGV[a + 6 + c]) - cost[c]
  end
  local name = KEYS[key + 1]
  local record = not over[name] and redis.call('GET', name)
  if record and record ~= '' then
    over[name] = true
    record = cmsgpack.unpack(record)
    local fresh = micros
    for i = 1, n do fresh = math.max(fresh, scope(KEYS[key + i * 2]).last + 1) end
    for i = 1, n do
      charge(scope(KEYS[key + i * 2]), record[1], fresh, record[2][i], cost, delta, a + 9 + (i - 1) * 8)
    end
    reply[#reply + 1] = 1
  else
    if early and not record then early_ones[#early_ones + 1] = name end
    reply[#reply + 1] = 0
  end
  for i = 1, n do gone[#gone + 1] = {KEYS[key + i * 2 + 1], id} end
  a = a + 9 + n * 8
  key = key + 1 + n * 2
end
for _, s in ipairs(order) do save(s, now) end
for _, name in ipairs(early_ones) do redis.call('SET', name, '', 'PX', 60000) end
for name in pairs(over) do redis.call('DEL', name) end
for _, slot in ipairs(gone) do redis.call('ZREM', slot[1], slot[2]) end
return reply
