-- Several limits. This part is composed after fast.lua.

local all, count, before, combine = {}, #KEYS - 1, '', take('<d', args, COMBINE_AT)
for i = 1, count do
  local n, q, r, a, b
  n, q, r, a, b, at = take('<ddddd', args, at)
  if gate > 0 and gate + (1 - b) * (q + 1) >= now then
    return false
  end
  local state, last, tat, rem = values[i + 1], 0, 0, 0
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
  before = before .. pack('<ddd', last, tat, rem)
  all[i] = { n = n, q = q, r = r, a = a, b = b, last = last, tat = tat, rem = rem }
end

-- TAT of limit `l` moved on by `units` emission intervals, or back if they are negative.
local function advance(l, units)
  local x = l.rem + units * l.r
  local m = x % l.n
  return l.tat + units * l.q + (x - m) / l.n, m
end

local function earliest(l)
  local units = l.a * l.cost + l.b
  if units > 0 then
    return NEVER
  end
  local slot, rem = advance(l, units)
  if rem > 0 then
    slot = slot + 1
  end
  return slot > now and slot or now
end

-- When a job fits, and the first limit that requires that instant.
local function choose(places, peek)
  local slot, limit
  for i = 1, places do
    local l = all[i]
    if peek or l.cost > 0 then
      local own = earliest(l)
      l.own = own
      if not slot or (combine == 0 and own > slot) or (combine > 0 and own < slot) then
        slot, limit = own, i
      end
    end
  end
  return slot, limit
end

local function commit(places, slot, limit)
  for i = 1, places do
    local l = all[i]
    if l.cost > 0 and (combine == 0 or i == limit or (combine == 1 and l.own == slot)) then
      if l.tat < slot and (l.rem == 0 or l.tat + 1 < slot) then
        l.tat, l.rem = slot, 0
      end
      l.tat, l.rem = advance(l, l.cost)
      l.last, l.taken = slot, true
    end
  end
end

local granted, refused, binding, size, units_taken, refused_cost = 0, -1, 0, #args, 0, 1
while at <= size and refused < 0 do
  local peek, jobs = true, nil
  for i = 1, count do
    all[i].cost, at = take('<d', args, at)
    peek = peek and all[i].cost == 0
  end
  jobs, at = take('<d', args, at)
  for _ = 1, jobs do
    local slot, limit = choose(count, peek)
    if slot > last_slot then
      if police == 0 then
        refused, binding, refused_cost = slot, limit - 1, all[1].cost
      end
      break -- the other jobs of this run are equal
    end
    granted, units_taken = granted + 1, units_taken + all[1].cost
    commit(count, slot, limit)
  end
end

if ticked then
  call('SETRANGE', KEYS[1], HW_AT, ticked)
end
for i = 1, count do
  local l = all[i]
  if l.taken then
    local px = l.tat <= now + 1000000 and '65000' or string.format('%.0f', math.ceil((l.tat - now + KEPT) / 1000))
    local state = pack('<Hdddddddd', KIND, l.last, shift, epoch, l.tat, l.rem, l.n, l.q * l.n + l.r, 1 - l.a - l.b)
    call('SET', KEYS[i + 1], state, 'PX', px)
  end
end
local stamp, tombstones = record:sub(STAMP_AT, STAMP_TO), record:sub(TOMBSTONES_AT, TOMBSTONES_TO)
if turns == 0 then
  return stamp .. tombstones .. pack('<dddd', now, granted, refused, binding) .. before
end

-- Each limit was given once, so a unit costs it 1.
for i = 1, count do
  all[i].cost = 1
end
local next_slot, turn, units, spacing, lead = refused, -1, 0, 0, 0
if refused < 0 then
  next_slot = choose(count)
end
local turns_end, was, until_when, _, from, to = take('<dddddd', record, TURNS_FIRST)
local was_from, was_to = from, to
reach, until_when = reached(now, reach, was, until_when)
local waits = refused < 0 or binding < own_limits -- for the whole downstream
if waits or begins >= 0 then
  local is_used = false
  for i = 1, count do
    is_used = is_used or all[i].taken
  end
  local free, limit = choose(own_limits)
  local left, apart = waits and waiting - units_taken or 0, interval
  if waits and refused > free then
    free = refused -- a unit would fit before the job that was refused does
  elseif left > 0 then
    commit(own_limits, free, limit)
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
return stamp .. tombstones
  .. pack('<dddddddddddd', now, now, 0, granted, refused, binding, next_slot, reach, turn, units, spacing, lead)
  .. before
