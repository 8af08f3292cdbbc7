-- Starts the counts of limits again from 0, after the latest slot that each of them granted, without a burst.
--
-- KEYS  1 record, 2.. the state of each limit, then the terms, the note on the pause and the cool-down
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker saw (0:
--         none), the run that it is connected to, how far ahead slots are granted to it and those like it, the
--         farthest slot that it was granted, when it was answered last, how many limits, then each
--       2 the channel on which changes are published, 3 the downstream
-- Answer as record.lua's

local LAST_OF_NOTE = '1040' -- as in record.lua

local now = instant(number())
local r = follow_record(now, number(), number(), number(), number(), number())
local count = number()

for _, l in ipairs(limits(count, r.fence)) do
  local kind, from = l.kind, max(now, r.fence, r.lull)
  local was = kind.load(l)
  if was then
    from = max(from, was.last - max(r.shift - was.shift, 0))
  end
  local s = { last = from, shift = r.shift, epoch = r.epoch }
  kind.fresh(l, s)
  if kind.restart then
    kind.restart(l, s, from)
  end
  save_state(l, s, now)
end

-- Later than the record's beginning, so that what workers remember of windows from before a loss is obsolete.
r.reset = max(r.reset + 1, r.epoch + 1, now)
forget_turns(r)
save_record(r)
-- If PUBLISH is not permitted, the others learn of it when they next read the record.
redis.pcall('PUBLISH', ARGV[2], ARGV[3])
return {
  stamp(now, r),
  redis.call('GET', KEYS[count + 2]),
  redis.call('GETRANGE', KEYS[count + 3], '0', LAST_OF_NOTE),
  cool_down_answer(load_cool_down(KEYS[count + 4], r, now)),
}
