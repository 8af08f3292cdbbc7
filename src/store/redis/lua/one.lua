-- One limit, in plain numbers: most calls are this one. It is put after fast.lua.

local n, q, r, a, b
n, q, r, a, b, at = take('<ddddd', args, at)
if gate > 0 and gate + (1 - b) * (q + 1) >= now then
  return false
end
local state, last, tat, rem = told[2], 0, 0, 0
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

local before_last, before_tat, before_rem = last, tat, rem
local granted, refused, taken, size = 0, -1, false, #args
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
        refused = slot
      end
      break -- the others of this run are alike
    end
    granted, left = granted + 1, left - 1
    if cost > 0 then
      taken, last = true, slot
      if tat < slot and (rem == 0 or tat + 1 < slot) then
        tat, rem = slot, 0
      end
      local by, rest = cost, cost * left
      if left > 0 and left == jobs - 1 and (rest + cost + 1) * n < EXACT
        and tat + (rest + cost) * (q + 1) < EXACT then
        -- After the first job none starts anew: TAT rises by all costs at once, if the last one fits.
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
          by, last = cost + rest, slot
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
  call('SET', KEYS[1], pack('<dddddddddd', epoch, ran, reset, fence, hw, shift, penalty, pause, version, generation))
end
if taken then
  local lives = (tat > now and tat - now or 0) + GRACE + 999
  state = pack('<Bdddddddd', KIND, last, shift, epoch, tat, rem, n, q * n + r, 1 - a - b)
  call('SET', KEYS[2], state, 'PX', (lives - lives % 1000) / 1000)
end
return pack(
  '<ddddddddddddd',
  now,
  epoch,
  granted,
  refused,
  0,
  penalty,
  pause,
  version,
  generation,
  reset,
  before_last,
  before_tat,
  before_rem
)
