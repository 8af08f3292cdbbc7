-- A leaky bucket as people write it. KEYS[1]: when its next slot is, µs. ARGV[1]: µs between slots.
-- Answers how many µs to wait for the slot that is taken.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slot = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
redis.call('SET', KEYS[1], string.format('%.0f', slot + ARGV[1]), 'EX', 60)
return slot - now
