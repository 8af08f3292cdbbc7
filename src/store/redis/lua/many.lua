-- Several limits. It is put after fast.lua.

local all, count, before = {}, #KEYS - 1, ''
for i = 1, count do
  local n, q, r, a, b
  n, q, r, a, b, at = take('<ddddd', args, at)
  if gate > 0 and gate + (1 - b) * (q + 1) >= now then
    return false
  end
  local state, last, tat, rem = told[i + 1], 0, 0, 0
  if state then
    if #state ~= SIZE then
      return false
    end
    local kind, moved, of, count, period, burst
    kind, last, moved, of, tat, rem, count, period, burst = take('<Bdddddddd', state)
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

-- `units` emission intervals of limit `l` on from its TAT, or back.
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

local granted, refused, binding, size = 0, -1, 0, #args
while at <= size and refused < 0 do
  local peek, jobs = true, nil
  for i = 1, count do
    all[i].cost, at = take('<d', args, at)
    peek = peek and all[i].cost == 0
  end
  jobs, at = take('<d', args, at)
  for _ = 1, jobs do
    local slot, limit
    for i = 1, count do
      local l = all[i]
      if peek or l.cost > 0 then
        local own = earliest(l)
        l.own = own
        if not slot or (combine == 0 and own > slot) or (combine > 0 and own < slot) then
          slot, limit = own, i
        end
      end
    end
    if slot > last_slot then
      if police == 0 then
        refused, binding = slot, limit - 1
      end
      break -- the others of this run are alike
    end
    granted = granted + 1
    for i = 1, count do
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
end

if ticked then
  call('SET', KEYS[1], pack('<dddddddddd', epoch, ran, reset, fence, hw, shift, penalty, pause, version, generation))
end
for i = 1, count do
  local l = all[i]
  if l.taken then
    local lives = (l.tat > now and l.tat - now or 0) + GRACE + 999
    local state = pack('<Bdddddddd', KIND, l.last, shift, epoch, l.tat, l.rem, l.n, l.q * l.n + l.r, 1 - l.a - l.b)
    call('SET', KEYS[i + 1], state, 'PX', (lives - lives % 1000) / 1000)
  end
end
return pack('<dddddddddd', now, epoch, granted, refused, binding, penalty, pause, version, generation, reset) .. before
