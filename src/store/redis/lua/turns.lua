-- The queue of turns of the callers that request slots. src/store/turns.rs has the same arithmetic.
--
-- The answer to a caller says when its next turn begins, for how many units, how far apart their slots are, and how
-- long before it the call should arrive (lead). At its turn the caller takes every slot up to the turn's end. A call
-- that arrives earlier leaves the caller its turn.

local REACH_KEPT = 30000000 -- how long the reach stays after the last asker that needed it
local MOST = 1024

-- The instant that lies a span after another, or the last one that a number can tell from the next.
local function after(at, span)
  return math.min(at + span, 9007199254740991)
end

local function half(span)
  return (span - span % 2) / 2
end

-- Whether a call that arrives now is made at the turn.
local function is_due(now, begins, lead)
  return begins >= 0 and now >= begins - lead - (lead - lead % 4) / 4
end

-- The latest slot that a call at its turn may take. A late call takes fewer slots.
local function turn_end(now, begins, units, spacing, lead)
  local length = units * spacing
  local late = math.min(math.max(now - begins + lead, 0), (length - length % 4) / 4)
  return now + lead + length - half(spacing) - late
end

-- The reach of the queue and the instant until which it is needed, given that the caller needs `own`.
local function reached(now, own, reach, reach_until)
  if own >= reach or now >= reach_until then
    return own, now + REACH_KEPT
  end
  return reach, reach_until
end

-- The begin and the units of the rest of a turn that was not used; nil if it is over, or was discarded. The next slot
-- is `free`.
local function left_of(begins, units, spacing, free, turns_end)
  local ends = after(begins, units * spacing)
  if ends > turns_end or after(free, half(spacing)) >= ends then
    return nil
  end
  if free <= begins then
    return begins, units
  end
  local x = ends - free + half(spacing)
  return free, math.max((x - x % spacing) / spacing, 1)
end

-- Takes back a turn: the queue ends earlier, or else the record remembers one vacancy, the earliest. Returns the end of
-- the queue, and the begin and the end of the vacancy (0: none).
local function take_back(free, begins, ends, turns_end, from, to)
  if ends == turns_end then
    if to == begins then
      return from, 0, 0
    end
    return begins, from, to
  end
  if to <= free or to > turns_end or (begins < from and ends ~= from) then
    return turns_end, begins, ends
  elseif to == begins then
    return turns_end, from, ends
  elseif ends == from then
    return turns_end, begins, to
  end
  return turns_end, from, to
end

-- Books a turn for `left` units, the first of which belong to a job of `cost`; the next slot is `free`. Returns what
-- next_turn does.
local function book(now, free, spacing, left, cost, interval, farthest_turn, reach, turns_end, from, to)
  -- Slots lie no farther apart than the interval, but for those behind the end of a window.
  spacing = math.min(math.max(spacing, 0), interval)
  local begins, lead = math.max(turns_end, free), (3 * reach - 3 * reach % 5) / 5
  local units = MOST
  if spacing > 0 then
    -- Where slots lie later than was planned by more than the lead, so does the turn.
    local behind = (free - begins) % spacing
    if lead < behind and behind <= half(spacing) then
      begins = after(begins, behind)
    end
    local x, y = 4 * reach + 5 * spacing, 10 * spacing
    units = math.min(math.max((x - x % y) / y, 1), MOST)
  end
  units = math.max(math.min(left, units), cost)
  -- An older replica that discards all turns leaves the vacancy, which then lies behind the end of the queue.
  if to <= free or to > turns_end then
    from, to = 0, 0
  end
  local vacant = math.max(from, free)
  if to > 0 and from < begins and after(vacant, units * spacing) <= after(to, half(spacing)) then
    from = after(vacant, units * spacing)
    if from >= to then
      from, to = 0, 0
    end
    return vacant, units, spacing, lead, turns_end, from, to
  end
  -- Where no slot is ever free there is nothing to book, at any distance.
  if begins > now + farthest_turn or free >= 9007199254740991 then
    return begins, 0, spacing, lead, turns_end, from, to
  end
  return begins, units, spacing, lead, after(begins, units * spacing), from, to
end

-- The next turn of a caller: its begin (-1: none), units (0: it is too far ahead to be booked), spacing and lead; then the
-- new end of the queue, and the begin and the end of its vacancy (0: none). `begins`, `units`, `spacing` and `lead` are
-- those of the turn that it holds (-1: none), `is_used` says that this call was granted slots, and `goes_on` that others
-- of its jobs are asked for at the same turn. `left` units wait, the first of which belong to a job of `cost`: their next
-- slot is `free`, and the one after it lies `apart`. A turn that would begin farther ahead than `farthest_turn` is not
-- booked.
local function next_turn(now, begins, units, spacing, lead, is_used, goes_on, left, cost, free, apart, interval,
  farthest_turn, reach, turns_end, from, to)
  local due = is_due(now, begins, lead)
  if begins >= 0 and not (due and is_used) then
    local left_begins, left_units = left_of(begins, units, spacing, free, turns_end)
    if left_begins and left > 0 then
      return left_begins, left_units, spacing, lead, turns_end, from, to
    elseif left_begins and not goes_on then
      return -1, 0, 0, 0, take_back(free, begins, after(begins, units * spacing), turns_end, from, to)
    end
  end
  if left <= 0 or (goes_on and due and free <= turn_end(now, begins, units, spacing, lead)) then
    return -1, 0, 0, 0, turns_end, from, to
  end
  return book(now, free, apart, left, cost, interval, farthest_turn, reach, turns_end, from, to)
end
