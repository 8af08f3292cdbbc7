-- Shared by the other scripts: it is put in front of each.
--
-- All instants are microseconds on the store's clock, all numbers integers below 2^53, so that a
-- double holds them exactly. The same arithmetic is in src/limit/leaky_bucket.rs.
--
-- A record (hash, no TTL): epoch, run, at, fence, hw, shift.
-- A state (string, TTL): "tat rem last shift epoch"; tat + rem/N is the theoretical arrival time,
-- last the latest slot, shift and epoch those of the record when it was written.

local GRACE = 60000000 -- how long a state is kept once it equals absence
local LONGEST_LEASE = 60000000
local STEP = 100000 -- a clock further behind than this has stepped back

local function int(n)
  return string.format('%.0f', n)
end

-- The instant to decide at, and whether it is a clock's ('store', or 'clock' for a test's) or
-- explicit ('at': nothing is corrected for steps back).
local function instant(mode, given)
  if mode == 'store' then
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2], true
  end
  return tonumber(given), mode == 'clock'
end

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

-- The limits: `count` triples of N, P and burst in ARGV from `from` on. `floor` is where a state
-- starts that the store has lost.
local function limits(count, from, fence)
  local all = {}
  for i = 1, count do
    local at = from + (i - 1) * 3
    local n, p = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local r = p % n
    local l = { key = KEYS[i + 1], n = n, r = r, q = (p - r) / n, burst = tonumber(ARGV[at + 2]) }
    l.floor, l.floor_rem = 0, 0
    if fence > 0 then
      l.floor, l.floor_rem = advance(l, fence, 0, l.burst)
    end
    all[i] = l
  end
  return all
end

local function load_record()
  local f = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'at', 'fence', 'hw', 'shift')
  if not f[1] then
    return nil
  end
  return {
    epoch = tonumber(f[1]),
    run = f[2] or '',
    at = tonumber(f[3] or 0),
    fence = tonumber(f[4] or 0),
    hw = tonumber(f[5] or 0),
    shift = tonumber(f[6] or 0),
  }
end

local function load_state(key)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local tat, rem, last, shift, epoch = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    tat = tonumber(tat),
    rem = tonumber(rem),
    last = tonumber(last),
    shift = tonumber(shift),
    epoch = tonumber(epoch),
  }
end

-- Lives until it equals absence, and GRACE more.
local function save_state(l, s, now)
  local whole = math.max(ceil(s.tat, s.rem), ceil(l.floor, l.floor_rem), now)
  local px = math.ceil((whole - now) / 1000) + GRACE / 1000
  local fields = { int(s.tat), int(s.rem), int(s.last), int(s.shift), int(s.epoch) }
  redis.call('SET', l.key, table.concat(fields, ' '), 'PX', int(px))
end
