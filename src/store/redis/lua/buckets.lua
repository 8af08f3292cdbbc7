-- c: the sliding window, "c last shift epoch width cleared number units ...": pairs of a bucket's number and its
-- units, rising. It is put after windows.lua. src/limit/sliding_window.rs has the same arithmetic.

local function parse_entries(s, text)
  local at, units = {}, {}
  for a, u in string.gmatch(text, '(%d+) (%d+)') do
    at[#at + 1], units[#units + 1] = tonumber(a), tonumber(u)
  end
  s.at, s.units = at, units
end

local function entries_text(head, s)
  local parts = { head }
  for i = 1, #s.at do
    parts[i + 1] = format('%.0f %.0f', s.at[i], s.units[i])
  end
  return table.concat(parts, ' ')
end

-- Adds units at a position, and drops the entries up to `gone`.
local function add_entry(s, position, cost, gone)
  local at, units, n, placed = {}, {}, 0, false
  for i = 1, #s.at do
    local a, u = s.at[i], s.units[i]
    if a > gone then
      if not placed and a >= position then
        placed = true
        if a == position then
          u = u + cost
        else
          n = n + 1
          at[n], units[n] = position, cost
        end
      end
      n = n + 1
      at[n], units[n] = a, u
    end
  end
  if not placed then
    at[n + 1], units[n + 1] = position, cost
  end
  s.at, s.units = at, units
end

local function take_entry(s, position, cost)
  for i = #s.at, 1, -1 do
    if s.at[i] == position then
      s.units[i] = math.max(s.units[i] - cost, 0)
      if s.units[i] == 0 then
        table.remove(s.at, i)
        table.remove(s.units, i)
      end
      return
    end
  end
end

local function units_at(s, position)
  for i = #s.at, 1, -1 do
    if s.at[i] == position then
      return s.units[i]
    end
  end
  return 0
end

-- Moves every entry back, and merges those that meet.
local function move_entries(s, by)
  local at, units, n = {}, {}, 0
  for i = 1, #s.at do
    local a = math.max(s.at[i] - by, 0)
    if n > 0 and at[n] == a then
      units[n] = units[n] + s.units[i]
    else
      n = n + 1
      at[n], units[n] = a, s.units[i]
    end
  end
  s.at, s.units = at, units
end

local counter = { lose = after_loss, pause = after_pause }
kinds.c = counter

function counter.read(l, at, fence)
  read_count(l, at, fence)
  l.width, l.buckets = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  return at + 3
end

function counter.parse(_, text)
  local last, shift, epoch, width, cleared, rest = match(text, '^c (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  if not last then
    return nil
  end
  local s = {
    last = tonumber(last),
    shift = tonumber(shift),
    epoch = tonumber(epoch),
    width = tonumber(width),
    cleared = tonumber(cleared),
  }
  parse_entries(s, rest)
  return s
end

function counter.fresh(l, s)
  s.width, s.cleared, s.at, s.units = l.width, 0, {}, {}
end

function counter.text(_, s)
  return entries_text(format('c %.0f %.0f %.0f %.0f %.0f', s.last, s.shift, s.epoch, s.width, s.cleared), s)
end

function counter.back(_, s, by)
  local moved = floor(by / s.width)
  move_entries(s, moved)
  s.cleared = math.max(s.cleared - moved * s.width, 0)
end

function counter.adopt(l, s)
  if s.width == l.width then
    return
  end
  local sum = 0
  for i = 1, #s.units do
    sum = sum + s.units[i]
  end
  s.width, s.at, s.units = l.width, {}, {}
  if sum > 0 then
    s.at[1], s.units[1] = floor(s.last / l.width), math.min(sum, l.n)
  end
end

function counter.whole(l, s)
  local n = #s.at
  if n == 0 then
    return s.last
  end
  return math.max((s.at[n] + 1 + l.buckets) * l.width, s.last)
end

-- The units that count in full in this bucket, those of the one that leaves, and the first that leaves
-- after it.
local function sums(l, s, number)
  local oldest, full = number - l.buckets, 0
  for i = #s.at, 1, -1 do
    if s.at[i] > oldest then
      full = full + s.units[i]
    elseif s.at[i] == oldest then
      return full, s.units[i], i + 1
    else
      return full, 0, i + 1
    end
  end
  return full, 0, 1
end

function counter.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local from = math.max(now, s.last)
  local number = floor(from / l.width)
  local full, leaving, i = sums(l, s, number)
  while true do
    local start, room = number * l.width, l.n - full - cost
    if room >= 0 then
      local gone = 0
      if leaving > 0 then
        local x = room * l.width
        gone = math.max(l.width - (x - x % leaving) / leaving, 0)
      end
      local at = math.max(start + gone, from)
      if at < start + l.width then
        return at
      end
    end
    number, leaving = number + 1, 0
    local leaves = s.at[i] and s.at[i] + l.buckets
    -- Without room nothing changes until the next one leaves.
    if leaves and (leaves == number or room < 0) then
      number, leaving, full, i = leaves, s.units[i], full - s.units[i], i + 1
    end
  end
end

function counter.commit(l, s, at, cost)
  local oldest = floor(s.last / l.width) - l.buckets
  for i = #s.at, 1, -1 do
    if s.at[i] < oldest then
      s.cleared = math.max(s.cleared, (s.at[i] + 1 + l.buckets) * l.width)
      break
    end
  end
  add_entry(s, floor(at / l.width), cost, oldest - 1)
  s.last = at
end

function counter.mark(l, s)
  return units_at(s, floor(s.last / l.width)), 0
end

function counter.undo(l, s, last, _, _, at, cost)
  take_entry(s, floor(at / l.width), cost)
  s.last = math.max(last, s.cleared)
end

function counter.standing(l, s, now)
  local at = math.max(now, s.last)
  local number = floor(at / l.width)
  local full, leaving = sums(l, s, number)
  local x = ((number + 1) * l.width - at) * leaving + l.width - 1
  local weighed = (x - x % l.width) / l.width
  return math.max(l.n - full - weighed, 0), (number + 1 + l.buckets) * l.width
end
