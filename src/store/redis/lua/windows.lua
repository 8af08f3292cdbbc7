-- The algorithms with windows. This part is composed after counts.lua.

-- Reads N, then the window as the caller last saw it: the epoch (0: never), its end, and the units used.
local function read_window(l)
  l.n, l.known_epoch, l.known_ends, l.known_used, at = unpack_at('<dddd', args, at)
end

-- Windows: "w1", and behind last, shift and epoch the doubles end, used. src/limit/window.rs has the same
-- arithmetic, and mixed.lua repeats it.
local window = { is_window = true, lose = after_loss, pause = after_pause }

local WINDOW = head_of('w')

function window.load(l)
  local packed, other = load_whole(l, WINDOW)
  if not packed then
    return other
  end
  local last, shift, epoch, ends, used = unpack_at('<ddddd', packed, 3)
  l.stored = ends
  return { last = last, shift = shift, epoch = epoch, ends = ends, used = used }
end

function window.fresh(_, s)
  s.ends, s.used = 0, 0
end

function window.save(l, s, px)
  redis.call('SET', l.key, pack('<Hddddd', WINDOW, s.last, s.shift, s.epoch, s.ends, s.used), 'PX', px)
end

function window.replace(l, s)
  if l.stored ~= s.ends then
    return false
  end
  redis.call('SETRANGE', l.key, '2', pack('<ddddd', s.last, s.shift, s.epoch, s.ends, s.used))
  return true
end

function window.back() end

function window.adopt(l, s)
  s.ends = min(s.ends, s.last + l.longest)
end

function window.whole(_, s)
  return max(s.ends, s.last)
end

function window.earliest(l, s, now, cost)
  if cost > l.n then
    return NEVER
  end
  local at = max(now, s.last)
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

-- Restores what the caller remembers from before a loss, if it is more: the same window with more units used, or a
-- later window. Each window is compared by itself, since the caller may have learnt of the loss through a call for
-- other limits.
function window.recall(l, s, now, loss)
  if l.known_epoch == 0 or l.known_epoch >= loss then
    return false -- nothing was lost since
  elseif l.known_ends > now + l.longest then
    return false -- the clock was another one
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

local all_windows = { __index = window }

-- w: aligned to the epoch, and an offset.
kinds[('w'):byte()] = setmetatable({
  read = function(l)
    read_window(l)
    l.longest, l.offset = number(), number()
  end,
  edge = function(l, at)
    return at - (at - l.offset) % l.longest + l.longest
  end,
}, all_windows)

-- f: begun by the first unit taken.
kinds[('f'):byte()] = setmetatable({
  read = function(l)
    read_window(l)
    l.longest = number()
  end,
  edge = function(l, at)
    return at + l.longest
  end,
  back = function(_, s, by)
    s.ends = max(s.ends - by, 0)
  end,
}, all_windows)

-- q: a calendar's, whose next edges the worker sends.
kinds[('q'):byte()] = setmetatable({
  read = function(l)
    read_window(l)
    l.longest, l.edges, l.first_edge = number(), number(), at
    at = at + 8 * l.edges
  end,
  edge = function(l, from)
    local place = l.first_edge
    for i = 1, l.edges do
      local edge
      edge, place = unpack_at('<d', args, place)
      if edge > from and i > 1 then
        return edge
      elseif edge > from then
        break
      end
    end
    if not missing then
      missing, missing_to = from, from
    end
    missing, missing_to = min(missing, from), max(missing_to, from)
    return from + l.longest
  end,
}, all_windows)
