-- The algorithms that count. It is put after lib.lua.

local function after_loss(l, s)
  -- Slots up to the fence may have been taken; how many is not known.
  if s.last < l.floor then
    s.last = l.floor
  end
end

local function read_count(l, at, fence)
  l.floor = fence
  l.n = tonumber(ARGV[at])
end

-- Windows: "w last shift epoch end used". src/limit/window.rs has the same arithmetic.
local window = { lose = after_loss }

function window.parse(_, text)
  local last, shift, epoch, ends, used = match(text, '^w (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not last then
    return nil
  end
  return {
    last = tonumber(last),
    shift = tonumber(shift),
    epoch = tonumber(epoch),
    ends = tonumber(ends),
    used = tonumber(used),
  }
end

function window.fresh(_, s)
  s.ends, s.used = 0, 0
end

function window.text(_, s)
  return format('w %.0f %.0f %.0f %.0f %.0f', s.last, s.shift, s.epoch, s.ends, s.used)
end

function window.back() end

function window.adopt(l, s)
  s.ends = math.min(s.ends, s.last + l.longest)
end

function window.whole(_, s)
  return math.max(s.ends, s.last)
end

function window.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local at = math.max(now, s.last)
  if at >= s.ends or s.used + cost <= l.n then
    return at
  end
  return s.ends
end

function window.commit(l, s, at, cost)
  if at >= s.ends then
    s.ends, s.used = l.kind.edge(l, at), cost
  else
    s.used = s.used + cost
  end
  s.last = at
end

function window.mark(_, s)
  return s.ends, s.used
end

function window.undo(_, s, a, b)
  s.ends, s.used = a, b
end

local function windows(own)
  for name, of in pairs(window) do
    own[name] = own[name] or of
  end
  return own
end

-- w: aligned to the epoch, and an offset.
kinds.w = windows({
  read = function(l, at, fence)
    read_count(l, at, fence)
    l.longest, l.offset = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    return at + 3
  end,
  edge = function(l, at)
    return at - (at - l.offset) % l.longest + l.longest
  end,
})

-- f: begun by the first unit taken.
kinds.f = windows({
  read = function(l, at, fence)
    read_count(l, at, fence)
    l.longest = tonumber(ARGV[at + 1])
    return at + 2
  end,
  edge = function(l, at)
    return at + l.longest
  end,
  back = function(_, s, by)
    s.ends = math.max(s.ends - by, 0)
  end,
})

-- q: a calendar's, whose next edges the worker sends.
kinds.q = windows({
  read = function(l, at, fence)
    read_count(l, at, fence)
    l.longest, l.edges = tonumber(ARGV[at + 1]), at + 3
    l.last_edge = at + 2 + tonumber(ARGV[at + 2])
    return l.last_edge + 1
  end,
  edge = function(l, at)
    if at >= tonumber(ARGV[l.edges]) then
      for i = l.edges + 1, l.last_edge do
        local edge = tonumber(ARGV[i])
        if edge > at then
          return edge
        end
      end
    end
    missing = missing or at
    return at + l.longest
  end,
})

-- Entries: pairs of a position and units, rising; "LETTER last shift epoch ... position units ..."
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

-- c: the sliding window's buckets, "c last shift epoch width number units ...".
-- src/limit/sliding_window.rs has the same arithmetic.
local counter = { lose = after_loss }
kinds.c = counter

function counter.read(l, at, fence)
  read_count(l, at, fence)
  l.width, l.buckets = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  return at + 3
end

function counter.parse(_, text)
  local last, shift, epoch, width, rest = match(text, '^c (%d+) (%d+) (%d+) (%d+)(.*)$')
  if not last then
    return nil
  end
  local s = {
    last = tonumber(last),
    shift = tonumber(shift),
    epoch = tonumber(epoch),
    width = tonumber(width),
  }
  parse_entries(s, rest)
  return s
end

function counter.fresh(l, s)
  s.width, s.at, s.units = l.width, {}, {}
end

function counter.text(_, s)
  return entries_text(format('c %.0f %.0f %.0f %.0f', s.last, s.shift, s.epoch, s.width), s)
end

function counter.back(_, s, by)
  move_entries(s, floor(by / s.width))
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

-- The units that count in full in this bucket, and those of the one that leaves.
local function sums(l, s, number)
  local oldest, full = number - l.buckets, 0
  for i = #s.at, 1, -1 do
    if s.at[i] > oldest then
      full = full + s.units[i]
    elseif s.at[i] == oldest then
      return full, s.units[i]
    else
      break
    end
  end
  return full, 0
end

function counter.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local from = math.max(now, s.last)
  local number = floor(from / l.width)
  while true do
    local full, leaving = sums(l, s, number)
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
    number = number + 1
  end
end

function counter.commit(l, s, at, cost)
  add_entry(s, floor(at / l.width), cost, floor(s.last / l.width) - l.buckets - 1)
  s.last = at
end

function counter.mark(l, s)
  return units_at(s, floor(s.last / l.width)), 0
end

function counter.undo(l, s, _, _, at, cost)
  take_entry(s, floor(at / l.width), cost)
end

function counter.standing(l, s, now)
  local at = math.max(now, s.last)
  local number = floor(at / l.width)
  local full, leaving = sums(l, s, number)
  local x = ((number + 1) * l.width - at) * leaving + l.width - 1
  local weighed = (x - x % l.width) / l.width
  return math.max(l.n - full - weighed, 0), (number + 1 + l.buckets) * l.width
end

-- l: the log, "l last shift epoch at units ...". src/limit/sliding_log.rs has the same arithmetic.
local log = { lose = after_loss }
kinds.l = log

function log.read(l, at, fence)
  read_count(l, at, fence)
  l.period = tonumber(ARGV[at + 1])
  return at + 2
end

function log.parse(_, text)
  local last, shift, epoch, rest = match(text, '^l (%d+) (%d+) (%d+)(.*)$')
  if not last then
    return nil
  end
  local s = { last = tonumber(last), shift = tonumber(shift), epoch = tonumber(epoch) }
  parse_entries(s, rest)
  return s
end

function log.fresh(_, s)
  s.at, s.units = {}, {}
end

function log.text(_, s)
  return entries_text(format('l %.0f %.0f %.0f', s.last, s.shift, s.epoch), s)
end

function log.back(_, s, by)
  move_entries(s, by)
end

function log.adopt() end

function log.whole(l, s)
  local n = #s.at
  if n == 0 then
    return s.last
  end
  return math.max(s.at[n] + l.period, s.last)
end

-- Where the entries begin that count at `at`, and their sum.
local function live(l, s, at)
  local sum, first = 0, #s.at + 1
  for i = #s.at, 1, -1 do
    if s.at[i] <= at - l.period then
      break
    end
    sum, first = sum + s.units[i], i
  end
  return first, sum
end

function log.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local at = math.max(now, s.last)
  local first, sum = live(l, s, at)
  for i = first, #s.at do
    if sum + cost <= l.n then
      break
    end
    sum = sum - s.units[i]
    at = s.at[i] + l.period
  end
  return at
end

function log.commit(l, s, at, cost)
  add_entry(s, at, cost, s.last - l.period)
  s.last = at
end

function log.mark(_, s)
  return units_at(s, s.last), 0
end

function log.undo(_, s, _, _, at, cost)
  take_entry(s, at, cost)
end

function log.standing(l, s, now)
  local at = math.max(now, s.last)
  local first, sum = live(l, s, at)
  local reset = s.at[first] and s.at[first] + l.period or at
  return math.max(l.n - sum, 0), reset
end
