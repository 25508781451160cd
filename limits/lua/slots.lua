-- slots takes for each attempt a slot in all its scopes, or in none.
-- KEYS: for each attempt the slots of its scopes.
-- ARGV: time in µs (0: Redis' own), the lease's life in ms, then for each
-- attempt its name, the number of scopes and the limit of each.
-- Returns for each attempt 1 if it has its slots.
local now = math.floor(clock(tonumber(ARGV[1])) / 1000)
local lease, reply = tonumber(ARGV[2]), {}
local a, key = 3, 0
while a <= #ARGV do
  local id, n, free = ARGV[a], tonumber(ARGV[a + 1]), true
  for i = 1, n do
    free = free and slots_used(KEYS[key + i], now) < tonumber(ARGV[a + 1 + i])
  end
  if free then
    for i = 1, n do
      redis.call('ZADD', KEYS[key + i], now + lease, id)
      redis.call('PEXPIRE', KEYS[key + i], lease + 1000)
    end
  end
  reply[#reply + 1] = free and 1 or 0
  a, key = a + 2 + n, key + n
end
return reply
