-- The GCRA as people write it, in whole µs. KEYS[1]: its theoretical arrival time.
-- ARGV: 1 the emission interval, 2 the burst tolerance, 3 the cost in units.
-- Answers {1, 0} if it may go, else {0, how many µs to wait}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + ARGV[1] * ARGV[3]
local wait = tat - ARGV[2] - now
if wait > 0 then
  return { 0, wait }
end
local ttl = math.ceil((tat - now) / 1000)
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', string.format('%.0f', ttl))
return { 1, 0 }
