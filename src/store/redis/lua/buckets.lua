-- c: the sliding window: "c1", and after last, shift and epoch the doubles width and cleared, then pairs of a
-- bucket's number and its units, in rising order. This part is composed after counts.lua. src/limit/sliding_window.rs
-- has the same arithmetic.

-- Entries before `first` no longer count. The sum for one bucket is kept for the next one, so that a call does not
-- visit all entries for each job.
local function put_entries(s, at, units)
  s.at, s.units, s.first, s.inside = at, units, 1, nil
end

local function unpack_entries(s, packed, from)
  local at, units, n = {}, {}, 0
  for place = from, #packed, 16 do
    n = n + 1
    at[n], units[n] = unpack_at('<dd', packed, place)
  end
  put_entries(s, at, units)
end

local function pack_entries(head, s)
  local parts, n = { head }, 1
  for i = s.first, #s.at do
    n = n + 1
    parts[n] = pack('<dd', s.at[i], s.units[i])
  end
  return table.concat(parts)
end

-- The index of the entry with this position, or the one at which it would be inserted. It is near the end.
local function place_of(s, position)
  local i = #s.at + 1
  while i > s.first and s.at[i - 1] >= position do
    i = i - 1
  end
  return i
end

local function add_entry(s, position, cost)
  local i = place_of(s, position)
  if s.at[i] == position then
    s.units[i] = s.units[i] + cost
  else
    table.insert(s.at, i, position)
    table.insert(s.units, i, cost)
  end
  if s.inside and i >= s.inside and position > s.oldest then
    s.full = s.full + cost
  else
    s.inside = nil
  end
end

local function take_entry(s, position, cost)
  local i = place_of(s, position)
  if s.at[i] ~= position then
    return
  end
  s.inside = nil
  s.units[i] = max(s.units[i] - cost, 0)
  if s.units[i] == 0 then
    table.remove(s.at, i)
    table.remove(s.units, i)
  end
end

local function units_at(s, position)
  local i = place_of(s, position)
  return s.at[i] == position and s.units[i] or 0
end

-- Moves every entry back by `by`, and merges entries of the same bucket.
local function move_entries(s, by)
  local at, units, n = {}, {}, 0
  for i = s.first, #s.at do
    local a = max(s.at[i] - by, 0)
    if n > 0 and at[n] == a then
      units[n] = units[n] + s.units[i]
    else
      n = n + 1
      at[n], units[n] = a, s.units[i]
    end
  end
  put_entries(s, at, units)
end

local counter = { lose = after_loss, pause = after_pause }
kinds[('c'):byte()] = counter

local COUNTER = head_of('c')

function counter.read(l)
  l.n, l.width, l.buckets = number(), number(), number()
end

function counter.load(l)
  local packed, other = load_whole(l, COUNTER)
  if not packed then
    return other
  end
  local s = {}
  s.last, s.shift, s.epoch, s.width, s.cleared = unpack_at('<ddddd', packed, 3)
  unpack_entries(s, packed, 43)
  return s
end

function counter.fresh(l, s)
  s.width, s.cleared = l.width, 0
  put_entries(s, {}, {})
end

function counter.save(l, s, px)
  local head = pack('<Hddddd', COUNTER, s.last, s.shift, s.epoch, s.width, s.cleared)
  redis.call('SET', l.key, pack_entries(head, s), 'PX', px)
end

function counter.back(_, s, by)
  local moved = floor(by / s.width)
  move_entries(s, moved)
  s.cleared = max(s.cleared - moved * s.width, 0)
end

function counter.adopt(l, s)
  if s.width == l.width then
    return
  end
  local sum = 0
  for i = s.first, #s.units do
    sum = sum + s.units[i]
  end
  s.width = l.width
  put_entries(s, {}, {})
  if sum > 0 then
    add_entry(s, floor(s.last / l.width), min(sum, l.n))
  end
end

function counter.whole(l, s)
  local n = #s.at
  if n < s.first then
    return s.last
  end
  return max((s.at[n] + 1 + l.buckets) * l.width, s.last)
end

-- Returns the units that count in full at this bucket, those of the bucket that is leaving, and the index of the first
-- entry that leaves after it.
local function sums(l, s, number)
  local oldest = number - l.buckets
  local i, full = s.inside, s.full
  if not i or oldest < s.oldest then
    i, full = #s.at + 1, 0
    while i > s.first and s.at[i - 1] > oldest do
      i = i - 1
      full = full + s.units[i]
    end
  else
    while s.at[i] and s.at[i] <= oldest do
      full = full - s.units[i]
      i = i + 1
    end
  end
  s.inside, s.full, s.oldest = i, full, oldest
  local leaves = i > s.first and s.at[i - 1] == oldest
  return full, leaves and s.units[i - 1] or 0, i
end

function counter.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local from = max(now, s.last)
  local number = floor(from / l.width)
  local full, leaving, i = sums(l, s, number)
  while true do
    local start, room = number * l.width, l.n - full - cost
    if room >= 0 then
      local gone = 0
      if leaving > 0 then
        local x = room * l.width
        gone = max(l.width - (x - x % leaving) / leaving, 0)
      end
      local at = max(start + gone, from)
      if at < start + l.width then
        return at
      end
    end
    number, leaving = number + 1, 0
    local leaves = s.at[i] and s.at[i] + l.buckets
    -- Without room nothing changes until the next bucket leaves.
    if leaves and (leaves == number or room < 0) then
      number, leaving, full, i = leaves, s.units[i], full - s.units[i], i + 1
    end
  end
end

function counter.commit(l, s, at, cost)
  local oldest = floor(s.last / l.width) - l.buckets
  while s.at[s.first] and s.at[s.first] < oldest do
    s.cleared = max(s.cleared, (s.at[s.first] + 1 + l.buckets) * l.width)
    s.first = s.first + 1
  end
  if s.inside and s.inside < s.first then
    s.inside = nil
  end
  add_entry(s, floor(at / l.width), cost)
  s.last = at
end

function counter.mark(l, s)
  return units_at(s, floor(s.last / l.width)), 0
end

function counter.undo(l, s, last, _, _, at, cost)
  take_entry(s, floor(at / l.width), cost)
  s.last = max(last, s.cleared)
end

function counter.standing(l, s, now)
  local at = max(now, s.last)
  local number = floor(at / l.width)
  local full, leaving = sums(l, s, number)
  local x = ((number + 1) * l.width - at) * leaving + l.width - 1
  local weighed = (x - x % l.width) / l.width
  return max(l.n - full - weighed, 0), (number + 1 + l.buckets) * l.width
end
