-- Keeps the summaries that replicas leave for each other, and returns them. src/store/memory/fleet.rs has the same
-- rules.
--
-- KEYS  1 the replicas by when their summaries end (sorted set), 2.. the summaries of replicas
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock); for 'leave', for how long
--       2 the call:
--         'leave', the second key
--         'withdraw', the second key
--         'read', the keys from the second on
--       3 for 'leave' and 'withdraw': the replica
--       4 for 'leave': the summary
-- Answer for 'read' the replicas whose summaries have not ended, at most MOST: those that end last; and the summaries at the
--         first keys, as many as fit into about BUDGET bytes, empty where there is none; otherwise 1

local MOST = 1000 -- summaries that are listed
local LONGEST_NAME = 64
local LONGEST = 1048576 -- bytes of a summary
local BUDGET = 4194304 -- bytes that one answer has at least, if there are as many
local PRUNED = 1000 -- how many that have ended one call removes

local now, op, replica = instant(number()), ARGV[2], ARGV[3]

local function prune()
  local ended = redis.call('ZRANGE', KEYS[1], '-inf', int(now), 'BYSCORE', 'LIMIT', '0', tostring(PRUNED))
  if #ended > 0 then
    redis.call('ZREM', KEYS[1], unpack(ended))
  end
end

local function list()
  local live = redis.call('ZRANGE', KEYS[1], '+inf', '(' .. int(now), 'BYSCORE', 'REV', 'LIMIT', '0', tostring(MOST))
  local named = {}
  for i = 1, #live do
    if #live[i] <= LONGEST_NAME then
      named[#named + 1] = live[i]
    end
  end
  return named
end

local call = {}

function call.leave()
  local ttl = number()
  prune()
  redis.call('SET', KEYS[2], ARGV[4], 'PX', int(math.ceil(ttl / 1000)))
  redis.call('ZADD', KEYS[1], int(now + ttl), replica)
  -- The set ends with its last summary.
  local latest = tonumber(redis.call('ZRANGE', KEYS[1], '-1', '-1', 'WITHSCORES')[2])
  redis.call('PEXPIRE', KEYS[1], int(math.ceil((latest - now + GRACE) / 1000)))
  return 1
end

function call.withdraw()
  prune()
  redis.call('ZREM', KEYS[1], replica)
  redis.call('DEL', KEYS[2])
  return 1
end

function call.read()
  local summaries, bytes = {}, 0
  for i = 2, #KEYS do
    -- A longer one was not left by paced, and is not read as a whole.
    local summary = redis.call('GETRANGE', KEYS[i], '0', int(LONGEST))
    if #summary > LONGEST then
      summary = ''
    end
    summaries[i - 1], bytes = summary, bytes + #summary
    if bytes >= BUDGET then
      break
    end
  end
  return { list(), summaries }
end

return call[op]()
