-- The GCRA family: "t" and the doubles last, shift, epoch, tat, rem, packed; tat + rem/N is the
-- theoretical arrival time. It is put after lib.lua. src/limit/tat.rs has the same arithmetic, and
-- one.lua and many.lua have it once more.

-- `units` emission intervals of limit `l` on from tat + rem/N, or back.
local function advance(l, tat, rem, units)
  local x = rem + units * l.r
  local m = x % l.n
  return tat + units * l.q + (x - m) / l.n, m
end

local function ceil(tat, rem)
  if rem > 0 then
    return tat + 1
  end
  return tat
end

-- t: the leaky bucket, which charges behind.
local tat = {}
kinds.t = tat

function tat.read(l, at, fence)
  local n, p = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local r = p % n
  l.n, l.r, l.q, l.burst = n, r, (p - r) / n, tonumber(ARGV[at + 2])
  l.floor, l.floor_rem = 0, 0
  if fence > 0 then
    l.floor, l.floor_rem = advance(l, fence, 0, l.burst)
  end
  return at + 3
end

function tat.parse(_, packed)
  if #packed ~= 41 or packed:byte() ~= 116 then
    return nil
  end
  local last, shift, epoch, at, rem = struct.unpack('<ddddd', packed, 2)
  return { last = last, shift = shift, epoch = epoch, tat = at, rem = rem }
end

function tat.fresh(_, s)
  s.tat, s.rem = 0, 0
end

function tat.text(_, s)
  return struct.pack('<Bddddd', 116, s.last, s.shift, s.epoch, s.tat, s.rem)
end

function tat.back(_, s, by)
  if s.tat < by then
    s.tat, s.rem = 0, 0
  else
    s.tat = s.tat - by
  end
end

function tat.adopt(l, s)
  if s.rem >= l.n then
    s.tat, s.rem = s.tat + 1, 0 -- written under another rate
  end
end

-- After a loss: no unit before the fence, and no burst right after it.
function tat.lose(l, s)
  if s.tat < l.floor or (s.tat == l.floor and s.rem < l.floor_rem) then
    s.tat, s.rem = l.floor, l.floor_rem
  end
end

function tat.whole(_, s)
  return s.tat
end

function tat.earliest(l, s, now)
  local due = ceil(advance(l, s.tat, s.rem, 1 - l.burst))
  return due > now and due or now
end

function tat.commit(l, s, at, cost)
  local from, rem = s.tat, s.rem
  if ceil(from, rem) < at then
    from, rem = at, 0
  end
  s.tat, s.rem = advance(l, from, rem, cost)
  s.last = at
end

function tat.mark(_, s)
  return s.tat, s.rem
end

function tat.undo(_, s, last, a, b)
  s.last, s.tat, s.rem = last, a, b
end

-- g: the GCRA and the token bucket, which need the whole cost to fit.
local gcra = {}
for name, of in pairs(tat) do
  gcra[name] = of
end
kinds.g = gcra

function gcra.earliest(l, s, now, cost)
  if cost > l.burst then
    return NEVER
  end
  local due = ceil(advance(l, s.tat, s.rem, cost - l.burst))
  return due > now and due or now
end
