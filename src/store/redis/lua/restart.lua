-- Has the counts of limits begin at 0, behind the latest slot that each of them granted, without a burst.
--
-- KEYS  1 record, 2.. the state of each limit, then the terms
-- ARGV  1 'store' | 'clock', 2 the instant for the latter
--       3 the last epoch that the worker saw (0: none), 4 the run that it is connected to
--       5 H: how far ahead slots may have been granted that the store has lost
--       6 the channel on which changes are told, 7 the downstream
--       8 how many limits, then each
-- Answer as tend.lua's

local now = instant(ARGV[1], ARGV[2])
local r = follow_record(now, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
local count = tonumber(ARGV[8])

for _, l in ipairs((limits(count, 9, r.fence))) do
  local kind, from = l.kind, math.max(now, r.fence)
  local was = load_state(l)
  if was then
    local back = math.max(r.shift - was.shift, 0) or 0
    from = math.max(from, was.last - back)
  end
  local s = { last = from, shift = r.shift, epoch = r.epoch }
  kind.fresh(l, s)
  if kind.restart then
    kind.restart(l, s, from)
  end
  save_state(l, s, now)
end

-- Later than the record's beginning: what workers know of windows from before a loss counts no more.
r.reset = math.max(r.reset + 1, r.epoch + 1, now)
save_record(r)
-- Where it is not permitted the others look now and then.
redis.pcall('PUBLISH', ARGV[6], ARGV[7])
return { now, r.epoch, r.penalty, r.pause, r.version, r.generation, r.reset, redis.call('GET', KEYS[count + 2]) }
