-- peek reads scopes without changing them.
-- KEYS: for each scope its hash and slots. ARGV: time in µs (0: Redis' own).
-- Returns for each scope slots in use, requests under way, reserved ×3, and for
-- each bucket what is used.
local now = math.floor(clock(tonumber(ARGV[1])) / 1000)
local reply = {}
for i = 1, #KEYS, 2 do
  local s = load(KEYS[i])
  reply[#reply + 1] = redis.call('ZCOUNT', KEYS[i + 1], string.format('(%.0f', now), '+inf')
  reply[#reply + 1] = #s.live / 8
  for c = 1, 3 do reply[#reply + 1] = s.held[c] end
  for k = 1, 4 do
    drain(s.b[k], now)
    reply[#reply + 1] = s.b[k].used
  end
end
return reply
