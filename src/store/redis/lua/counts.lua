-- The common part of the counting algorithms. It is composed after lib.lua.

local function after_loss(l, s)
  -- Slots up to the fence may have been granted; their number is not known.
  if s.last < l.floor then
    s.last = l.floor
  end
end

local function after_pause(_, s, till, now)
  if till > now and s.last < till then
    s.last, s.tail = till, 0
  end
end
