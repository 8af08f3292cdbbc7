-- Discards the state of limits: the next slot is now.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), how many limits, then each
-- Answer 1

local now, count = instant(number()), number()
local record = load_record()
for _, l in ipairs(limits(count, record and record.fence or 0)) do
  if l.floor > now then
    -- An absent state under a fence would count as lost and start at the floor, so a state that is whole now is saved
    -- instead.
    local s = { last = 0, shift = record.shift, epoch = record.epoch }
    l.kind.fresh(l, s)
    save_state(l, s, now)
  else
    redis.call('DEL', l.key)
  end
end
if record then
  -- Turns that were booked begin too late now.
  forget_turns(record)
  save_record(record)
end
return 1
