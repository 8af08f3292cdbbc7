-- Records when each downstream was last served, and returns those that nobody serves. src/store/memory/fleet.rs has
-- the same rules.
--
-- KEYS  1 the downstreams by when they were served last (sorted set)
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock); for how long nobody has served what is
--         returned; how many downstreams are served now; when each of the others was served last
--       2 how long the set is kept after a call, in ms
--       3 a downstream to forget, or ''
--       4.. the downstreams that are served now, then the others, which are added if they are not known
-- Answer how many of those served now were not known; the downstreams that nobody has served for that time, at most PAGE:
--         those that were served longest ago; when each was served last

local MOST = 10000 -- downstreams that are remembered
local PAGE = 1000 -- downstreams in an answer

local now, span, served = instant(number()), number(), number()

if ARGV[3] ~= '' then
  redis.call('ZREM', KEYS[1], ARGV[3])
end
local scored, fresh = {}, 0
for i = 4, 3 + served do
  scored[#scored + 1] = int(now)
  scored[#scored + 1] = ARGV[i]
end
if served > 0 then
  fresh = redis.call('ZADD', KEYS[1], unpack(scored))
end
for i = 4 + served, #ARGV do
  redis.call('ZADD', KEYS[1], 'NX', int(number()), ARGV[i])
end
local excess = min(redis.call('ZCARD', KEYS[1]) - MOST, PAGE)
if excess > 0 then
  redis.call('ZREM', KEYS[1], unpack(redis.call('ZRANGE', KEYS[1], '0', int(excess - 1))))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])

local listed = redis.call('ZRANGE', KEYS[1], '-inf', int(now - span), 'BYSCORE', 'LIMIT', '0', tostring(PAGE), 'WITHSCORES')
local names, instants = {}, {}
for i = 1, #listed, 2 do
  names[#names + 1] = listed[i]
  instants[#instants + 1] = tonumber(listed[i + 1])
end
return { fresh, names, instants }
