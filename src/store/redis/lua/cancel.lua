-- Gives a slot back if it lies ahead and no later one was taken.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 'store' | 'clock', 2 the instant for the latter, 3 the slot
--       4 how many limits, then each; then of each what it was charged (0: nothing), and
--       last, a and b before and after the slot was taken
-- Answer 1 if it was given back, else 0

local now = instant(ARGV[1], ARGV[2])
local slot, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local record = load_record()
if not record or now >= slot then
  return 0
end
if record.hw - now > STEP then
  return 0 -- the slot is an instant of a clock that is no more
end

local all, at = limits(count, 5, record.fence)
local function given(i)
  return tonumber(ARGV[at + i])
end

local undone = {}
for _, l in ipairs(all) do
  local cost = given(0)
  if cost > 0 then
    local s = load_state(l)
    if not s or s.epoch ~= record.epoch or (s.shift ~= record.shift) then
      return 0
    end
    l.kind.adopt(l, s)
    local a, b = l.kind.mark(l, s)
    if s.last ~= given(4) or a ~= given(5) or b ~= given(6) then
      return 0
    end
    l.kind.undo(l, s, given(1), given(2), given(3), slot, cost)
    l.state = s
    undone[#undone + 1] = l
  end
  at = at + 7
end
for _, l in ipairs(undone) do
  save_state(l, l.state, now)
end
return #undone > 0 and 1 or 0
