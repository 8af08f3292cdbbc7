-- Slots under windows, alone or beside limits of the GCRA family. This part is composed after fast.lua; instead of N
-- and what follows, each limit has
--   0, then what a limit has there; or
--   the letter of a window, then what windows.lua reads for it
-- It also answers nil where a known window may have been lost, where an edge of a calendar is missing, and where jobs
-- that cost less may overtake one that waits for the end of a window. An answer is always one of reserve.lua's.

local WINDOW, WINDOW_SIZE = 12663, 42 -- a window's state is "w1", and five doubles
local ALIGNED, CALENDAR = 119, 113 -- the letters w and q

local all, count, before, combine = {}, #KEYS - 1, '', take('<d', args, COMBINE_AT)
for i = 1, count do
  local letter
  letter, at = take('<d', args, at)
  local state, l = values[i + 1], nil
  if letter == 0 then
    local n, q, r, a, b
    n, q, r, a, b, at = take('<ddddd', args, at)
    if gate > 0 and gate + (1 - b) * (q + 1) >= now then
      return false
    end
    local last, tat, rem, stored = 0, 0, 0, -SPAN
    if state then
      if #state ~= SIZE then
        return false
      end
      local kind, moved, of, period_count, period, burst
      kind, last, moved, of, tat, rem, period_count, period, burst = take('<Hdddddddd', state)
      if kind ~= KIND or moved ~= shift or of ~= epoch or period_count ~= n or period ~= q * n + r
        or burst ~= 1 - a - b then
        return false
      end
      stored = tat
      if tat + GRACE <= hw then
        last, tat, rem, stored = 0, 0, 0, -SPAN
      end
    end
    before = before .. pack('<ddd', last, tat, rem)
    l = {
      letter = 0, n = n, q = q, r = r, a = a, b = b, last = last, tat = tat, rem = rem,
      cost = 1, taken = false, stored = stored,
    }
  else
    local n, known_epoch, _, longest
    n, known_epoch, _, _, longest, at = take('<ddddd', args, at)
    if gate >= now or (known_epoch > 0 and known_epoch ~= epoch) then
      return false
    end
    local last, ends, used, stored = 0, 0, 0, -1
    if state then
      if #state ~= WINDOW_SIZE then
        return false
      end
      local kind, moved, of
      kind, last, moved, of, ends, used = take('<Hddddd', state)
      if kind ~= WINDOW or moved ~= shift or of ~= epoch then
        return false
      end
      stored = ends
      if ends > last + longest then
        ends = last + longest
      end
      if (ends > last and ends or last) + GRACE <= hw then
        last, ends, used, stored = 0, 0, 0, -1
      end
    end
    before = before .. pack('<ddd', last, ends, used)
    local offset, edges = 0, 0
    if letter == ALIGNED then
      offset, at = take('<d', args, at)
    elseif letter == CALENDAR then
      edges, at = take('<d', args, at)
    end
    l = {
      letter = letter, n = n, last = last, ends = ends, used = used, longest = longest, offset = offset,
      edges = edges, edges_at = at, cost = 1, taken = false, stored = stored,
    }
    at = at + 8 * edges
  end
  all[i] = l
end

local missing = false

-- The end of the window that begins with a unit at `from`.
local function edge(l, from)
  if l.letter == ALIGNED then
    return from - (from - l.offset) % l.longest + l.longest
  elseif l.letter == CALENDAR then
    for i = 1, l.edges do
      local own = take('<d', args, l.edges_at + 8 * (i - 1))
      if own > from and i > 1 then
        return own
      elseif own > from then
        break
      end
    end
    missing = true
  end
  return from + l.longest
end

-- TAT of limit `l` moved on by `units` emission intervals, or back if they are negative.
local function advance(l, units)
  local x = l.rem + units * l.r
  local m = x % l.n
  return l.tat + units * l.q + (x - m) / l.n, m
end

-- When a job fits, the first limit that requires that instant, and the limits that the job is charged to.
local function choose(places, peek)
  local slot, binding, charge, bit = nil, 0, 0, 1
  for i = 1, places do
    local l = all[i]
    local own_cost = l.cost
    if peek or own_cost > 0 then
      local due
      if l.letter == 0 then
        local units, rem = l.a * own_cost + l.b, nil
        if units > 0 then
          due = NEVER
        else
          due, rem = advance(l, units)
          if rem > 0 then
            due = due + 1
          end
          if due < now then
            due = now
          end
        end
      elseif own_cost > l.n then
        due = NEVER
      else
        due = l.last > now and l.last or now
        if due < l.ends and l.used + own_cost > l.n then
          due = l.ends
        end
      end
      if not slot then
        slot, binding, charge = due, i - 1, bit
      elseif combine == 0 then
        charge = charge + bit
        if due > slot then
          slot, binding = due, i - 1
        end
      elseif due < slot then
        slot, binding, charge = due, i - 1, bit
      elseif due == slot and combine == 1 then
        charge = charge + bit
      end
    end
    bit = bit * 2
  end
  return slot or now, binding, peek and 0 or charge
end

local function commit(slot, charge, places)
  for i = 1, places do
    local own = charge % 2
    charge = (charge - own) / 2
    if own == 1 then
      local l = all[i]
      if l.letter == 0 then
        if l.tat < slot and (l.rem == 0 or l.tat + 1 < slot) then
          l.tat, l.rem = slot, 0
        end
        l.tat, l.rem = advance(l, l.cost)
      elseif slot >= l.ends then
        l.ends, l.used = edge(l, slot), l.cost
      else
        l.used = l.used + l.cost
      end
      l.last, l.taken = slot, true
    end
  end
end

local granted, refused, binding, size, units_taken, refused_cost = 0, -1, 0, #args, 0, 1
local outcomes = {}
while at <= size and refused < 0 do
  local most, jobs = 0, nil
  for i = 1, count do
    local cost
    cost, at = take('<d', args, at)
    all[i].cost = cost
    if cost > most then
      most = cost
    end
  end
  jobs, at = take('<d', args, at)
  local own = all[1].cost
  for _ = 1, jobs do
    local slot, limit, charge = choose(count, most == 0)
    if slot > last_slot then
      if combine == 0 and most > 1 and all[limit + 1].letter > 0 then
        return false
      end
      refused, binding, refused_cost = slot, limit, own > 1 and own or 1
      break -- the other jobs of this run are equal
    end
    granted, units_taken = granted + 1, units_taken + own
    outcomes[granted] = pack('<dd', slot, charge)
    commit(slot, charge, count)
  end
end
if missing then
  return false
end

if ticked then
  call('SETRANGE', KEYS[1], HW_AT, ticked)
end
for i = 1, count do
  local l = all[i]
  if l.taken then
    local is_window = l.letter > 0
    local whole, level = is_window and math.max(l.ends, l.last) or l.tat, nil
    if is_window and l.stored == l.ends then
      -- The TTL was set when the window began. A SET with a TTL costs Redis three times as much.
      call('SETRANGE', KEYS[i + 1], LEVEL_AT, pack('<ddddd', l.last, shift, epoch, l.ends, l.used))
    elseif not is_window and l.stored - l.stored % SPAN == l.tat - l.tat % SPAN then
      call('SETRANGE', KEYS[i + 1], LEVEL_AT, pack('<ddddd', l.last, shift, epoch, l.tat, l.rem))
    else
      if is_window then
        level = pack('<Hddddd', WINDOW, l.last, shift, epoch, l.ends, l.used)
      else
        level = pack('<Hdddddddd', KIND, l.last, shift, epoch, l.tat, l.rem, l.n, l.q * l.n + l.r, 1 - l.a - l.b)
      end
      local px = whole <= now + 1000000 and '65000' or string.format('%.0f', math.ceil((whole - now + KEPT) / 1000))
      call('SET', KEYS[i + 1], level, 'PX', px)
    end
  end
end

-- Each limit was given once, so a unit costs it 1.
for i = 1, count do
  all[i].cost = 1
end
local next_slot, turn, units, spacing, lead = refused, -1, 0, 0, 0
if refused < 0 then
  next_slot = choose(count)
end
if turns == 1 then
  local turns_end, was, until_when, _, from, to = take('<dddddd', record, TURNS_FIRST)
  local was_from, was_to = from, to
  reach, until_when = reached(now, reach, was, until_when)
  local waits = refused < 0 or binding < own_limits -- for the whole downstream
  if waits or begins >= 0 then
    local is_used = false
    for i = 1, count do
      is_used = is_used or all[i].taken
    end
    local free, _, charge = choose(own_limits)
    local left, apart = waits and waiting - units_taken or 0, interval
    if waits and refused > free then
      free = refused -- a unit would fit before the job that was refused does
    elseif left > 0 then
      commit(free, charge, own_limits)
      apart = choose(own_limits) - free
    end
    turn, units, spacing, lead, turns_end, from, to = next_turn(
      now, begins, turn_units, turn_spacing, turn_lead, is_used, goes_on == 1, left, refused_cost, free, apart, interval, farthest_turn,
      reach, turns_end, from, to
    )
  end
  call('SETRANGE', KEYS[1], TURNS_AT, pack('<ddd', turns_end, reach, until_when))
  if from ~= was_from or to ~= was_to then
    call('SETRANGE', KEYS[1], VACANCY_AT, pack('<dd', from, to))
  end
end
return record:sub(STAMP_AT, STAMP_TO) .. record:sub(TOMBSTONES_AT, TOMBSTONES_TO)
  .. pack('<dddddddddddd', now, now, 0, granted, refused, binding, next_slot, turns == 1 and reach or 0, turn, units, spacing, lead)
  .. before .. table.concat(outcomes)
