-- l: the log of every unit taken in the last period. This part is composed after counts.lua;
-- src/limit/sliding_log.rs has the same arithmetic.
--
-- "l1", nine doubles, and two more for each entry: when units were taken, and how many. The nine are last, shift,
-- epoch, the entries at the front that are gone, all entries, the units of those that are not gone, the units of the
-- last entry if it is at last, when the first one that is not gone was taken, and the first instant at which none of
-- those gone would count. A call reads the entries that leave and appends its own; for jobs that have to wait it also reads,
-- once, the entries that must leave first. Entries that were taken back may follow those that are counted.
local log = { is_read_in_parts = true }
kinds[('l'):byte()] = log

local HEAD = '<ddddddddd'
local HEAD_BYTES = 74
local LOG = head_of('l')
local ENTRY_BYTES = 16
local CHUNK = 32 -- entries read at once

function log.read(l)
  l.n, l.period = number(), number()
end

local function begin(s)
  -- The entries from `from` on that were read; the new entries; the index of the first live entry, and the units of the
  -- entries before it that are not gone.
  s.from, s.at, s.units = s.gone, {}, {}
  s.new_at, s.new_units = {}, {}
  s.cursor, s.expired = s.gone, 0
  -- The units of the first k entries from `from` on, for each k up to the last one that was needed.
  s.sums = {}
end

function log.load(l)
  local head = redis.call('GETRANGE', l.key, 0, HEAD_BYTES - 1)
  if head == '' then
    return nil
  end
  if #head < HEAD_BYTES or unpack_at('<H', head) ~= LOG then
    return foreign(l, head)
  end
  local s = {}
  s.last, s.shift, s.epoch, s.gone, s.count, s.total, s.tail, s.oldest, s.cleared =
    unpack_at(HEAD, head, 3)
  begin(s)
  return s
end

function log.fresh(_, s)
  s.gone, s.count, s.total, s.tail, s.oldest, s.cleared, s.whole_new = 0, 0, 0, 0, 0, 0, true
  begin(s)
end

-- When entry i was taken, and its units; nil after the last entry.
local function entry(l, s, i)
  if i >= s.count then
    return s.new_at[i - s.count + 1], s.new_units[i - s.count + 1]
  end
  local k = i - s.from + 1
  while k > #s.at do
    local first = HEAD_BYTES + (s.from + #s.at) * ENTRY_BYTES
    local size = min(CHUNK, s.count - s.from - #s.at) * ENTRY_BYTES
    local chunk = redis.call('GETRANGE', l.key, first, first + size - 1)
    for place = 1, #chunk, ENTRY_BYTES do
      local n = #s.at + 1
      s.at[n], s.units[n] = unpack_at('<dd', chunk, place)
      if s.raised and s.from + n == s.count then
        s.units[n] = s.raised
      end
    end
    if #chunk < size then
      error('the log at ' .. l.key .. ' is cut off')
    end
  end
  return s.at[k], s.units[k]
end

local function entries(s)
  return s.count - s.gone + #s.new_at
end

-- All entries that are not gone, as lists, which are written as a whole.
local function take_out(l, s)
  local at, units = {}, {}
  for i = s.gone, s.count + #s.new_at - 1 do
    at[#at + 1], units[#units + 1] = entry(l, s, i)
  end
  return at, units
end

local function put_back(s, at, units)
  s.gone, s.count, s.total, s.oldest, s.whole_new = 0, 0, 0, at[1] or 0, true
  begin(s)
  s.new_at, s.new_units = at, units
  for i = 1, #units do
    s.total = s.total + units[i]
  end
end

function log.save(l, s, px)
  if s.gone > 64 and s.gone > entries(s) then
    put_back(s, take_out(l, s))
  end
  local parts = {}
  for i = 1, #s.new_at do
    parts[i] = pack('<dd', s.new_at[i], s.new_units[i])
  end
  local count = s.count + #s.new_at
  local head = pack('<H', LOG)
    .. pack(HEAD, s.last, s.shift, s.epoch, s.gone, count, s.total, s.tail, s.oldest, s.cleared)
  if s.whole_new then
    redis.call('SET', l.key, head .. table.concat(parts), 'PX', px)
    return
  end
  if s.raised then
    local last = HEAD_BYTES + (s.count - 1) * ENTRY_BYTES
    redis.call('SETRANGE', l.key, last, pack('<dd', s.raised_at, s.raised))
  end
  if #parts > 0 then
    redis.call('SETRANGE', l.key, HEAD_BYTES + s.count * ENTRY_BYTES, table.concat(parts))
  end
  redis.call('SETRANGE', l.key, 0, head)
  redis.call('PEXPIRE', l.key, px)
end

-- Moves every entry back by `by`, and merges those that meet.
function log.back(l, s, by)
  local at, units = take_out(l, s)
  local moved, sums, n = {}, {}, 0
  for i = 1, #at do
    local a = max(at[i] - by, 0)
    if n > 0 and moved[n] == a then
      sums[n] = sums[n] + units[i]
    else
      n = n + 1
      moved[n], sums[n] = a, units[i]
    end
  end
  put_back(s, moved, sums)
  s.cleared = max(s.cleared - by, 0)
  s.tail = moved[n] == max(s.last - by, 0) and sums[n] or 0
end

function log.adopt() end

log.pause = after_pause

-- Slots up to the fence may have been granted; their number is not known.
function log.lose(l, s)
  if s.last < l.floor then
    s.last, s.tail = l.floor, 0
  end
end

function log.whole(l, s)
  local newest
  if s.tail > 0 then
    newest = s.last
  elseif #s.new_at > 0 then
    newest = s.new_at[#s.new_at]
  elseif entries(s) > 0 then
    -- The frontier lies after the last entry, so the entries before it need not be read.
    local at = HEAD_BYTES + (s.count - 1) * ENTRY_BYTES
    newest = unpack_at('<d', redis.call('GETRANGE', l.key, at, at + 7))
  end
  return newest and max(newest + l.period, s.last) or s.last
end

-- The units that count at `at`. Within a call `at` never decreases.
local function live(l, s, at)
  while true do
    local taken, units = entry(l, s, s.cursor)
    if not taken or taken > at - l.period then
      return s.total - s.expired
    end
    s.cursor, s.expired = s.cursor + 1, s.expired + units
  end
end

-- The units of the first k entries from `from` on.
local function sum_of_first(l, s, k)
  local sums = s.sums
  for n = #sums + 1, k do
    local _, units = entry(l, s, s.from + n - 1)
    sums[n] = (sums[n - 1] or 0) + units
  end
  return sums[k] or 0
end

-- How many of the first entries have at least `units` units. The other jobs of a call reuse what one job has summed
-- up: a full call of big jobs would otherwise read the whole log for each of them.
local function first_with(l, s, units)
  local sums = s.sums
  local low, high = 1, #sums
  if high == 0 or sums[high] < units then
    repeat
      high = high + 1
    until sum_of_first(l, s, high) >= units
    return high
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if sums[middle] < units then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

function log.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local at = max(now, s.last)
  -- The total is an upper bound of the units that count.
  if s.total - s.expired + cost <= l.n then
    return at
  end
  local excess = live(l, s, at) + cost - l.n
  if excess <= 0 then
    return at
  end
  local before = sum_of_first(l, s, s.cursor - s.from)
  local taken = entry(l, s, s.from + first_with(l, s, before + excess) - 1)
  return taken + l.period
end

-- Drops entries that no instant from the frontier on needs.
local function drop_gone(l, s)
  while entries(s) > 0 and s.oldest <= s.last - l.period do
    local _, units = entry(l, s, s.gone)
    s.total = s.total - units
    s.cleared = max(s.cleared, s.oldest + l.period)
    if s.cursor > s.gone then
      s.expired = s.expired - units
    else
      s.cursor = s.gone + 1
    end
    s.gone = s.gone + 1
    s.oldest = entry(l, s, s.gone) or 0
  end
end

function log.commit(l, s, at, cost)
  drop_gone(l, s)
  if s.tail > 0 and at == s.last then
    s.tail = s.tail + cost
    -- The last entry gets other units.
    s.sums[s.count - s.from + #s.new_at] = nil
    if #s.new_at > 0 then
      s.new_units[#s.new_units] = s.tail
    else
      s.raised, s.raised_at = s.tail, at
      if s.units[s.count - s.from] then
        s.units[s.count - s.from] = s.tail
      end
    end
  else
    s.tail = cost
    s.new_at[#s.new_at + 1], s.new_units[#s.new_units + 1] = at, cost
    if entries(s) == 1 then
      s.oldest = at
    end
  end
  s.total, s.last = s.total + cost, at
end

function log.mark(_, s)
  return s.tail, 0
end

-- Reads one entry.
local function read_entry(l, i)
  local at = HEAD_BYTES + i * ENTRY_BYTES
  return unpack_at('<dd', redis.call('GETRANGE', l.key, at, at + ENTRY_BYTES - 1))
end

-- Only the last two entries are read. The new tail is taken from them rather than from the mark, since a reset may
-- have happened in between.
function log.undo(l, s, last, _, _, _, cost)
  local at, units = read_entry(l, s.count - 1)
  local left = units - min(cost, units)
  s.total = s.total - (units - left)
  if left > 0 then
    s.raised, s.raised_at = left, at
  elseif entries(s) == 1 then
    at = nil
    put_back(s, {}, {})
  else
    -- Entries after the count are overwritten.
    s.count = s.count - 1
    at, left = read_entry(l, s.count - 1)
  end
  s.last = max(last, s.cleared)
  s.tail = at == s.last and left or 0
end

function log.standing(l, s, now)
  local at = max(now, s.last)
  local sum = live(l, s, at)
  local oldest = entry(l, s, s.cursor)
  return max(l.n - sum, 0), oldest and oldest + l.period or at
end
