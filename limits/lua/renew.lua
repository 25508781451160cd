-- renew says that a gateway lives, and prolongs what its requests hold.
-- KEYS: the gateways, then for each attempt its record and the slots it holds.
-- ARGV: time in µs (0: Redis' own), the gateway, its life in ms, record's and
-- lease's life in ms, then for each attempt its name and its number of slots.
-- Returns how many gateways live.
local now = math.floor(clock(tonumber(ARGV[1])) / 1000)
local life, lease = tonumber(ARGV[3]), tonumber(ARGV[5])
redis.call('ZADD', KEYS[1], now + life, ARGV[2])
redis.call('PEXPIRE', KEYS[1], life)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local a, key = 6, 1
while a <= #ARGV do
  local id, n = ARGV[a], tonumber(ARGV[a + 1])
  redis.call('PEXPIRE', KEYS[key + 1], ARGV[4])
  for i = 1, n do
    redis.call('ZADD', KEYS[key + 1 + i], now + lease, id)
    redis.call('PEXPIRE', KEYS[key + 1 + i], lease + 1000)
  end
  a, key = a + 2, key + 1 + n
end
return {redis.call('ZCARD', KEYS[1])}
