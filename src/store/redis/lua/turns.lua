-- The queue of turns of those who ask for slots. src/store/turns.rs has the same arithmetic.
--
-- The answer to an asker says when its next turn begins, for how many units, how far apart their slots are, and how
-- long before it the call should arrive (lead). At its turn the asker takes every slot up to the turn's end.

local LATER = 300000000 -- turns that begin later are not booked
local REACH_KEPT = 30000000 -- how long the reach stays after the last asker that needed it
local MOST = 1024

-- The latest slot that a call at its turn may take. A late call takes fewer slots.
local function turn_end(now, begins, units, spacing, lead)
  local length = units * spacing
  local late = math.min(math.max(now - begins + lead, 0), (length - length % 4) / 4)
  return now + lead + length - (spacing - spacing % 2) / 2 - late
end

-- The reach of the queue and the instant until which it is needed, given that the caller needs `own`.
local function reached(now, own, reach, reach_until)
  if own >= reach or now >= reach_until then
    return own, now + REACH_KEPT
  end
  return reach, reach_until
end

-- The next turn: its begin, units and lead, the new end of the queue, and the distance between its slots. Zero units
-- mean that it is too far ahead to be booked.
local function next_turn(now, free, spacing, left, cost, reach, turns_end, interval)
  -- Slots lie no farther apart than the interval, but for those behind the end of a window.
  spacing = math.min(math.max(spacing, 0), interval)
  local begins, lead = math.max(turns_end, free), (3 * reach - 3 * reach % 5) / 5
  if begins > now + LATER then
    return begins, 0, lead, turns_end, spacing
  end
  local units = MOST
  if spacing > 0 then
    local x, y = 4 * reach + 5 * spacing, 10 * spacing
    units = math.min(math.max((x - x % y) / y, 1), MOST)
  end
  units = math.max(math.min(left, units), cost)
  return begins, units, lead, math.min(begins + units * spacing, 9007199254740991), spacing
end
