-- Gives a slot back if it lies ahead, or was not used, and no later one was taken.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the slot, 1 if it was not used although it
--         may have passed or else 0, how many limits, then each; then of each what it was charged (0: nothing), and
--         last, a and b before and after the slot was taken
-- Answer 1 if it was given back, else 0

local now, slot, unused, count = instant(number()), number(), number(), number()
local record = load_record()
if not record or (now >= slot and unused == 0) then
  return 0
end
if record.hw - now > STEP then
  return 0 -- the slot is an instant of the clock before the step
end

local undone = {}
for _, l in ipairs(limits(count, record.fence)) do
  local cost, last, a, b = number(), number(), number(), number()
  local last_after, a_after, b_after = number(), number(), number()
  if cost > 0 then
    local s = l.kind.load(l)
    if not s or s.epoch ~= record.epoch or s.shift ~= record.shift then
      return 0
    end
    l.kind.adopt(l, s)
    local a_now, b_now = l.kind.mark(l, s)
    if s.last ~= last_after or a_now ~= a_after or b_now ~= b_after then
      return 0
    end
    l.kind.undo(l, s, last, a, b, slot, cost)
    l.state = s
    undone[#undone + 1] = l
  end
end
for _, l in ipairs(undone) do
  save_state(l, l.state, now)
end
return #undone > 0 and 1 or 0
