-- The queue of those who ask for slots. src/store/turns.rs has the same arithmetic.
--
-- An asker is told when its next turn begins, for how many units, how far apart their slots are, and how long
-- before it to ask (lead). At its turn it takes every slot up to the turn's end.

local LATER = 300000000 -- no turn is booked that begins later
local REACH_KEPT = 30000000 -- how long the queue reaches as far as somebody needed
local MOST = 1024

-- The latest slot that a call at its turn takes. Who is late takes less.
local function turn_end(now, begins, units, spacing, lead)
  local length = units * spacing
  local late = math.min(math.max(now - begins + lead, 0), (length - length % 4) / 4)
  return now + lead + length - (spacing - spacing % 2) / 2 - late
end

-- How far ahead turns are booked, and until when, if the caller needs `own`.
local function reached(now, own, reach, reach_until)
  if own >= reach or now >= reach_until then
    return own, now + REACH_KEPT
  end
  return reach, reach_until
end

-- The next turn: its begin, units and lead, the new end of the queue, and how far apart its slots lie. No units: it
-- would be too far off.
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
