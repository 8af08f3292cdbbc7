-- Keeps the tombstones of cancelled jobs, and returns those that changed. src/store/memory/tombstones.rs has the same
-- rules.
--
-- A tombstone is an id and the instant at which it ends. A tombstone that was undone is kept until that instant, as
-- its negative, so that no replica that does not know this restores the tombstone. Of several instants for one id the
-- latest counts, and each change of an id moves it to a later one.
--
-- KEYS  1 record, 2 the ids by the version at which each last changed (sorted set), 3 the ids by their instants
--         (sorted set)
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker saw (0:
--         none), the run that it is connected to, how far ahead slots are granted to it and those like it, the
--         farthest slot that it was granted, when it was answered last; then those of the call
--       2 the channel on which changes are published, 3 the downstream
--       4 the call, and its numbers:
--         'cancel', for how long
--         'undo'
--         'recall', the instant of each id, negative where it was undone
--         'read', the version after which the changes are returned
--       5.. the ids, but for 'read'
-- Answer doubles: generation, epoch, penalty, pause, paused, reset, tombstones, now; doubles: how many ids were changed
--         (-1: none, since there are too many), the version before the call, the version up to which the changes are
--         returned, and the instant of each id that is returned; these ids

local MOST = 100000 -- tombstones of a downstream
local PAGE = 1000 -- the ids of a call or of an answer
local PRUNED = 2000 -- how many that have ended one call removes

local now = instant(number())
local r, changed = follow_record(now, number(), number(), number(), number(), number())
local op, before = ARGV[4], r.tombstones

local function prune(from, to)
  local ended = redis.call('ZRANGE', KEYS[3], from, to, 'BYSCORE', 'LIMIT', '0', tostring(PRUNED))
  if #ended > 0 then
    redis.call('ZREM', KEYS[2], unpack(ended))
    redis.call('ZREM', KEYS[3], unpack(ended))
  end
end

-- The changes: for each its version and its id, and its instant and its id.
local by_version, by_instant, puts, fresh = {}, {}, 0, 0
local function put(id, at, is_fresh)
  r.tombstones = max(r.tombstones + 1, now)
  by_version[2 * puts + 1], by_version[2 * puts + 2] = int(r.tombstones), id
  by_instant[2 * puts + 1], by_instant[2 * puts + 2] = int(at), id
  puts, fresh = puts + 1, fresh + (is_fresh and 1 or 0)
end

local change = {}

-- `at` is the known instant of the id: 0 if there is none.
function change.cancel(id, at, until_when)
  if at <= 0 or until_when > at then
    put(id, max(until_when, 1 - at), at == 0)
  end
end

function change.undo(id, at)
  if at > 0 then
    put(id, -(at + 1), false)
  end
end

function change.recall(id, at, known)
  if math.abs(known) > max(math.abs(at), now) then
    put(id, known, at == 0)
  end
end

local returned, numbers_of, last = {}, {}, before
if op == 'read' then
  local after = number()
  local page = redis.call('ZRANGE', KEYS[2], '(' .. int(after), '+inf', 'BYSCORE', 'LIMIT', '0', tostring(PAGE), 'WITHSCORES')
  for i = 1, #page, 2 do
    returned[#returned + 1] = page[i]
    -- Where the second set was evicted, its own part is lost.
    numbers_of[#returned] = tonumber(redis.call('ZSCORE', KEYS[3], page[i]) or 0)
  end
  if #returned == PAGE then
    last = tonumber(page[#page])
  end
else
  prune('(0', int(now))
  prune(int(-now), '(0')
  local until_when = op == 'cancel' and min(now + number(), NEVER - 1) or nil
  for i = 5, #ARGV do
    local at = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[i]) or 0)
    if math.abs(at) <= now then
      at = 0 -- it has ended, and was not removed yet
    end
    change[op](ARGV[i], at, until_when or (op == 'recall' and number()))
  end
  if puts > 0 and redis.call('ZCARD', KEYS[2]) + fresh > MOST then
    puts, r.tombstones = -1, before
  elseif puts > 0 then
    redis.call('ZADD', KEYS[2], unpack(by_version))
    redis.call('ZADD', KEYS[3], unpack(by_instant))
    changed = true
    -- Both sets end when their last tombstone has.
    local latest = redis.call('ZRANGE', KEYS[3], '-1', '-1', 'WITHSCORES')[2]
    local undone = redis.call('ZRANGE', KEYS[3], '0', '0', 'WITHSCORES')[2]
    local px = int(math.ceil((max(tonumber(latest), -tonumber(undone)) - now + GRACE) / 1000))
    redis.call('PEXPIRE', KEYS[2], px)
    redis.call('PEXPIRE', KEYS[3], px)
  end
  last = r.tombstones
end

if changed then
  save_record(r)
end
if puts > 0 then
  -- If PUBLISH is not permitted, the others learn of it with their next call.
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
return {
  stamp(now, r),
  pack('<ddd', puts, before, last) .. pack_all(numbers_of, #numbers_of),
  returned,
}
