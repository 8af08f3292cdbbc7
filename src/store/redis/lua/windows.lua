-- The algorithms that count. It is put after lib.lua.

local function after_loss(l, s)
  -- Slots up to the fence may have been taken; how many is not known.
  if s.last < l.floor then
    s.last = l.floor
  end
end

local function after_pause(_, s, till, now)
  if till > now and s.last < till then
    s.last, s.tail = till, 0
  end
end

local function read_count(l, at, fence)
  l.floor = fence
  l.n = tonumber(ARGV[at])
end

-- N, then what the caller knew of the window when it last heard of it: in which epoch (0: never), its end, and
-- the units used.
local function read_window(l, at, fence)
  read_count(l, at, fence)
  l.heard, l.known_ends, l.known_used = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  return at + 4
end

-- Windows: "w last shift epoch end used". src/limit/window.rs has the same arithmetic.
local window = { lose = after_loss, pause = after_pause }

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

-- What a caller knows from before a loss counts where it is more: the same window, or a later one. Each
-- window by itself: the caller may have heard of the loss by a call that was not about this one.
function window.recall(l, s, now, epoch)
  if l.heard == 0 or l.heard >= epoch then
    return false -- of this record
  elseif l.known_ends > now + l.longest then
    return false -- of another clock
  elseif l.known_ends > s.ends then
    s.ends, s.used = l.known_ends, l.known_used
  elseif l.known_ends == s.ends and l.known_used > s.used then
    s.used = l.known_used
  else
    return false
  end
  return true
end

function window.mark(_, s)
  return s.ends, s.used
end

function window.undo(_, s, last, a, b)
  s.last, s.ends, s.used = last, a, b
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
    at = read_window(l, at, fence)
    l.longest, l.offset = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    return at + 2
  end,
  edge = function(l, at)
    return at - (at - l.offset) % l.longest + l.longest
  end,
})

-- f: begun by the first unit taken.
kinds.f = windows({
  read = function(l, at, fence)
    at = read_window(l, at, fence)
    l.longest = tonumber(ARGV[at])
    return at + 1
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
    at = read_window(l, at, fence)
    l.longest, l.edges = tonumber(ARGV[at]), at + 2
    l.last_edge = at + 1 + tonumber(ARGV[at + 1])
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
    if not missing then
      missing, missing_to = at, at
    end
    missing, missing_to = math.min(missing, at), math.max(missing_to, at)
    return at + l.longest
  end,
})
