-- Gives a slot back if it lies ahead and no later one was taken.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 'store' | 'clock' | 'at', 2 the instant for the latter two, 3 the slot
--       4 how many limits, then N, P and burst of each,
--       then tat and rem before, and tat and rem after the slot was taken, of each
-- Answer 1 if it was given back, else 0

local now, live = instant(ARGV[1], ARGV[2])
local slot, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local record = load_record()
if not record or now >= slot then
  return 0
end
if live and record.hw - now > STEP then
  return 0 -- the slot is an instant of a clock that is no more
end

local all = limits(count, 5, record.fence)
for i, l in ipairs(all) do
  local at = 5 + count * 3 + (i - 1) * 4
  local s = load_state(l.key)
  if not s or s.epoch ~= record.epoch or (live and s.shift ~= record.shift) then
    return 0
  end
  if s.tat ~= tonumber(ARGV[at + 2]) or s.rem ~= tonumber(ARGV[at + 3]) then
    return 0
  end
  s.tat, s.rem = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  l.state = s
end
for _, l in ipairs(all) do
  save_state(l, l.state, now)
end
return 1
