-- The GCRA family: "t1", and behind last, shift and epoch the doubles tat, rem, N, P, burst; tat + rem/N is the
-- theoretical arrival time under the rate of N per P, and that burst. This part is composed after lib.lua.
-- src/limit/tat.rs has the same arithmetic, and one.lua, many.lua and mixed.lua repeat it.

-- tat + rem/N moved on by `units` emission intervals of limit `l`, or back if they are negative.
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
kinds[('t'):byte()] = tat

local TAT = head_of('t')

function tat.read(l)
  local n, p, burst
  n, p, burst, at = unpack_at('<ddd', args, at)
  local r = p % n
  l.n, l.p, l.r, l.q, l.burst = n, p, r, (p - r) / n, burst
  l.floor, l.floor_rem = 0, 0
  if l.fence > 0 then
    l.floor, l.floor_rem = advance(l, l.fence, 0, l.burst)
  end
end

function tat.load(l)
  local packed, other = load_whole(l, TAT)
  if not packed then
    return other
  end
  local last, shift, epoch, due, rem, n, p, burst = unpack_at('<dddddddd', packed, 3)
  if n == l.n and p == l.p and burst == l.burst then
    l.stored = due
  end
  return { last = last, shift = shift, epoch = epoch, tat = due, rem = rem, n = n, p = p, burst = burst }
end

function tat.fresh(l, s)
  s.tat, s.rem, s.n, s.p, s.burst = 0, 0, l.n, l.p, l.burst
end

function tat.save(l, s, px)
  local packed = pack('<Hdddddddd', TAT, s.last, s.shift, s.epoch, s.tat, s.rem, l.n, l.p, l.burst)
  redis.call('SET', l.key, packed, 'PX', px)
end

function tat.replace(l, s)
  if l.stored - l.stored % SPAN ~= s.tat - s.tat % SPAN then
    return false
  end
  redis.call('SETRANGE', l.key, '2', pack('<ddddd', s.last, s.shift, s.epoch, s.tat, s.rem))
  return true
end

function tat.back(_, s, by)
  if s.tat < by then
    s.tat, s.rem = 0, 0
  else
    s.tat = s.tat - by
  end
end

-- Adapts a state that was written under other numbers: as many units are pending beyond the latest slot as before,
-- and one more for each unit by which the burst is higher.
function tat.adopt(l, s)
  local is_rate = s.n == l.n and s.p == l.p
  if is_rate and s.burst == l.burst then
    return
  end
  local ahead, more, at, rem = s.tat - s.last, l.burst - s.burst, nil, 0
  if ahead < 0 then
    at = ceil(s.tat, s.rem)
    if is_rate then
      at, rem = s.tat, s.rem
    end
  elseif is_rate then
    at, rem = advance(l, s.tat, s.rem, more)
    if at < s.last then
      at, rem = s.last, 0
    end
  else
    local units = max((ahead * s.n + s.rem) / s.p + more, 0)
    at = s.last + math.ceil(units * l.p / l.n)
  end
  -- The latest slot at which a unit can be computed exactly.
  local latest = NEVER - advance(l, 0, 0, l.burst + 1) - 1
  if at >= latest and (ahead >= 0 or not is_rate) then
    at, rem = latest, 0
  end
  s.tat, s.rem, s.n, s.p, s.burst = at, rem, l.n, l.p, l.burst
end

-- Raises TAT to at + rem/N; returns whether it was lower.
local function raise(s, at, rem)
  if s.tat < at or (s.tat == at and s.rem < rem) then
    s.tat, s.rem = at, rem
    return true
  end
  return false
end

-- After a loss no unit fits before the fence, and there is no burst right after it. Pending units count from there.
function tat.lose(l, s)
  raise(s, l.floor, l.floor_rem)
  s.last = max(s.last, l.fence)
end

-- The level with the burst used up at `from`.
function tat.restart(l, s, from)
  s.tat, s.rem = advance(l, from, 0, l.burst)
end

function tat.pause(l, s, till, now)
  local at, rem = advance(l, till, 0, l.burst - 1)
  if ceil(at, rem) > now and raise(s, at, rem) then
    s.last = max(s.last, till)
  end
end

function tat.whole(_, s)
  return s.tat
end

function tat.earliest(l, s, now)
  local due, rem = s.tat, s.rem
  if l.burst ~= 1 then
    due, rem = advance(l, due, rem, 1 - l.burst)
  end
  if rem > 0 then
    due = due + 1
  end
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
local gcra = setmetatable({}, { __index = tat })
kinds[('g'):byte()] = gcra

function gcra.earliest(l, s, now, cost)
  if cost > l.burst then
    return NEVER
  end
  local due = ceil(advance(l, s.tat, s.rem, cost - l.burst))
  return due > now and due or now
end
