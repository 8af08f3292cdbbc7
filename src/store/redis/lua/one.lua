-- One limit, in plain numbers, which serves most calls. This part is composed after fast.lua.

local n, q, r, a, b
n, q, r, a, b, at = take('<ddddd', args, at)
if gate > 0 and gate + (1 - b) * (q + 1) >= now then
  return false
end
local state, last, tat, rem = values[2], 0, 0, 0
if state then
  if #state ~= SIZE then
    return false
  end
  local kind, moved, of, count, period, burst
  kind, last, moved, of, tat, rem, count, period, burst = take('<Hdddddddd', state)
  if kind ~= KIND or moved ~= shift or of ~= epoch or count ~= n or period ~= q * n + r or burst ~= 1 - a - b then
    return false
  end
  if tat + GRACE <= hw then
    last, tat, rem = 0, 0, 0
  end
end

local before_last, before_tat, before_rem = last, tat, rem
local granted, refused, taken, size, units_taken, refused_cost = 0, -1, false, #args, 0, 1
while at <= size and refused < 0 do
  local cost, jobs
  cost, jobs, at = take('<dd', args, at)
  local left = jobs
  while left > 0 do
    local units = a * cost + b
    local x = rem + units * r
    local m = x % n
    local slot = tat + units * q + (x - m) / n
    if m > 0 then
      slot = slot + 1
    end
    if slot < now then
      slot = now
    end
    if units > 0 then
      slot = NEVER
    end
    if slot > last_slot then
      if police == 0 then
        refused, refused_cost = slot, cost
      end
      break -- the other jobs of this run are equal
    end
    granted, left, units_taken = granted + 1, left - 1, units_taken + cost
    if cost > 0 then
      taken, last = true, slot
      if tat < slot and (rem == 0 or tat + 1 < slot) then
        tat, rem = slot, 0
      end
      local by, rest = cost, cost * left
      if left > 0 and left == jobs - 1 and (rest + cost + 1) * n < EXACT
        and tat + (rest + cost) * (q + 1) < EXACT then
        -- After the first job the bucket never runs empty: TAT rises by all costs at once, if the last one fits.
        x = rem + (rest + units) * r
        m = x % n
        slot = tat + (rest + units) * q + (x - m) / n
        if m > 0 then
          slot = slot + 1
        end
        if slot < now then
          slot = now
        end
        if slot <= last_slot then
          by, last, units_taken = cost + rest, slot, units_taken + rest
          granted, left = granted + left, 0
        end
      end
      x = rem + by * r
      m = x % n
      tat, rem = tat + by * q + (x - m) / n, m
    end
  end
end

if ticked then
  call('SETRANGE', KEYS[1], HW_AT, ticked)
end
if taken then
  if state and before_tat - before_tat % SPAN == tat - tat % SPAN then
    -- The TTL was set within the same span, so it is long enough. A SET with a TTL costs Redis three times as much.
    call('SETRANGE', KEYS[2], LEVEL_AT, pack('<ddddd', last, shift, epoch, tat, rem))
  else
    state = pack('<Hdddddddd', KIND, last, shift, epoch, tat, rem, n, q * n + r, 1 - a - b)
    -- Formatting a number takes as long as all the arithmetic.
    local px = tat <= now + 1000000 and '65000' or string.format('%.0f', math.ceil((tat - now + KEPT) / 1000))
    call('SET', KEYS[2], state, 'PX', px)
  end
end
local stamp, tombstones = record:sub(STAMP_AT, STAMP_TO), record:sub(TOMBSTONES_AT, TOMBSTONES_TO)
if turns == 0 then
  return stamp .. tombstones .. pack('<ddddddd', now, granted, refused, 0, before_last, before_tat, before_rem)
end

-- The first free slot for a unit.
local function free_slot()
  local x = rem + (a + b) * r
  local m = x % n
  local slot = tat + (a + b) * q + (x - m) / n
  if m > 0 then
    slot = slot + 1
  end
  return slot < now and now or slot
end

local next_slot, turn, units, spacing, lead = refused, -1, 0, 0, 0
local turns_end, was, until_when, _, from, to = take('<dddddd', record, TURNS_FIRST)
local was_from, was_to = from, to
reach, until_when = reached(now, reach, was, until_when)
local left = waiting - units_taken
if refused < 0 or left > 0 or begins >= 0 then
  local free, apart = free_slot(), interval
  next_slot = refused < 0 and free or refused
  if refused > free then
    free = refused -- a unit would fit before the job that was refused does
  elseif left > 0 then
    if tat < free and (rem == 0 or tat + 1 < free) then
      tat, rem = free, 0
    end
    local x = rem + r
    local m = x % n
    tat, rem = tat + q + (x - m) / n, m
    apart = free_slot() - free
  end
  turn, units, spacing, lead, turns_end, from, to = next_turn(
    now, begins, turn_units, turn_spacing, turn_lead, taken, goes_on == 1, left, refused_cost, free, apart, interval, farthest_turn,
    reach, turns_end, from, to
  )
end
call('SETRANGE', KEYS[1], TURNS_AT, pack('<ddd', turns_end, reach, until_when))
if from ~= was_from or to ~= was_to then
  call('SETRANGE', KEYS[1], VACANCY_AT, pack('<dd', from, to))
end
return stamp .. tombstones
  .. pack('<dddddddddddd', now, now, 0, granted, refused, 0, next_slot, reach, turn, units, spacing, lead)
  .. pack('<ddd', before_last, before_tat, before_rem)
