-- peek reads a scope without changing it.
-- KEYS: the scope's hash and slots. ARGV: time in µs (0: Redis' own).
-- Returns time in ms, slots in use, requests under way, reserved ×3, and for
-- each bucket limit, burst and what is used.
local now = math.floor(clock(tonumber(ARGV[1])) / 1000)
local s = load(KEYS[1])
local reply = {now, redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf'), #s.live / 8, s.held[1], s.held[2], s.held[3]}
for k = 1, 4 do
  local b = s.b[k]
  drain(b, now)
  reply[#reply + 1] = b.limit
  reply[#reply + 1] = b.burst
  reply[#reply + 1] = b.used
end
return reply
