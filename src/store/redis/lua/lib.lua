-- Functions that all scripts but one.lua, many.lua and mixed.lua share: this part is composed first.
--
-- All instants are microseconds on the store's clock, all numbers integers below 2^53, so that a
-- double holds them exactly. The same arithmetic is in src/limit.
--
-- The record (string, no TTL): doubles, packed; see RECORD. Doubles that a later version has added after them are
-- kept.
-- A state (string, TTL): the letter of its kind and its version ('1'), then doubles: last, shift and epoch, and after
-- them the doubles of its kind. last is the latest slot, shift and epoch those of the record when it was written.

local GRACE = 60000000 -- how long a state counts once it equals absence
local SPAN = 4000000 -- the TTL of a TAT's state is set anew when the TAT enters another span of this length
local KEPT = 64000000 -- the TTL of a state once it equals absence when it is set: GRACE and SPAN
local LONGEST_LEASE = 600000000
local STEP = 100000 -- a clock further behind than this has stepped back
local NEVER = 9007199254740991 -- 2^53 - 1: a cost that never fits
local TICK = 25000 -- the highest instant is written down when it has risen by as much
local SHORT = 500000 -- a server that kept its state has lost no slots further ahead than this, or than turns reach

local floor, max, min, pack, unpack_at = math.floor, math.max, math.min, struct.pack, struct.unpack

local function int(n)
  return string.format('%.0f', n)
end

-- The numeric arguments of the script: doubles, one after the other.
local args, at = ARGV[1], 1

local function number()
  local n
  n, at = unpack_at('<d', args, at)
  return n
end

-- Reads `count` arguments.
local function numbers(count)
  if count <= 64 then
    local all = { unpack_at('<' .. ('d'):rep(count), args, at) }
    all[count + 1], at = nil, at + 8 * count
    return all
  end
  local all, done = {}, 0
  while done < count do
    local size = min(count - done, 64)
    local part = { unpack_at('<' .. ('d'):rep(size), args, at) }
    for i = 1, size do
      all[done + i] = part[i]
    end
    done, at = done + size, at + 8 * size
  end
  return all
end

-- Packs the first `count` of these numbers.
local function pack_all(values, count)
  local parts = {}
  for first = 1, count, 64 do
    local last = min(first + 63, count)
    parts[#parts + 1] = pack('<' .. ('d'):rep(last - first + 1), unpack(values, first, last))
  end
  return table.concat(parts)
end

-- The instant to decide at: the store's clock if `given` is -1, otherwise a test's.
local function instant(given)
  if given < 0 then
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2]
  end
  return given
end

-- The record's fields, in their order.
--   version      of this list; another one is for other scripts
--   gate         the latest of fence, lull, penalty and pause: without it nothing stands in the way
--   run          the server's process
--   shift        how far the clock has stepped back in all
--   hw           the highest instant seen, within TICK
--   far          no slot lies beyond it
--   generation   of the terms in force
--   epoch        when this record began; later after each loss and each restart of the server
--   penalty      no slot before it, as the downstream asked
--   pause        no slot before it, as an operator asked; NEVER: until somebody resumes
--   paused       the version of the pause
--   reset        the version of the last reset
--   fence        no slot and no burst before it: up to there slots may have been granted that are lost
--   loss         states of an epoch before it may have lost something
--   begun        when that loss was found, or the last restart
--   lull         no slot before it, but bursts: the server was restarted and kept its state
--   kept         the highest instant that it had seen before: what was written later is lost
--   turns_end    the end of the turns that are booked
--   reach        how far ahead turns are booked, and until when somebody needs as much
--   reach_until
--   tombstones   the version of the tombstones of cancelled jobs
--   vacant_from  the begin and the end of a gap in the queue of turns (0: none); a record of an earlier version of paced
--   vacant_to    ends before it, or before tombstones
local RECORD = '<ddddddddddddddddddddddd'
local RECORD_BYTES = 184
local OLDER_BYTES = 160
local VERSION = 1

local function load_record()
  local packed = redis.call('MGET', KEYS[1])[1]
  if not packed then
    return nil
  end
  if #packed < OLDER_BYTES or unpack_at('<d', packed) ~= VERSION then
    error('PACED: ' .. KEYS[1] .. ' was written by another version of paced; use its version, or another key_prefix')
  end
  if #packed < RECORD_BYTES then
    packed = (packed .. pack('<ddd', 0, 0, 0)):sub(1, RECORD_BYTES)
  end
  local version, gate, run, shift, hw, far, generation, epoch, penalty, pause, paused, reset, fence, loss, begun,
    lull, kept, turns_end, reach, reach_until, tombstones, vacant_from, vacant_to =
    unpack_at(RECORD, packed)
  -- A table that is built with all of its fields need not grow.
  return {
    version = version, gate = gate, run = run, shift = shift, hw = hw, far = far, generation = generation,
    epoch = epoch, penalty = penalty, pause = pause, paused = paused, reset = reset, fence = fence,
    loss = loss, begun = begun, lull = lull, kept = kept, turns_end = turns_end, reach = reach,
    reach_until = reach_until, tombstones = tombstones, vacant_from = vacant_from, vacant_to = vacant_to,
    more = packed:sub(RECORD_BYTES + 1),
  }
end

local function save_record(r)
  r.gate = max(r.fence, r.lull, r.penalty, r.pause)
  local packed = pack(
    RECORD,
    r.version, r.gate, r.run, r.shift, r.hw, r.far, r.generation, r.epoch, r.penalty, r.pause, r.paused,
    r.reset, r.fence, r.loss, r.begun, r.lull, r.kept, r.turns_end, r.reach, r.reach_until, r.tombstones,
    r.vacant_from, r.vacant_to
  )
  redis.call('SET', KEYS[1], packed .. r.more)
end

-- The stamp that begins every answer.
local function stamp(now, r)
  return pack('<dddddddd', r.generation, r.epoch, r.penalty, r.pause, r.paused, r.reset, r.tombstones, now)
end

-- The id of the server's process: as much of its run_id as a double holds.
local function run_now()
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    return 0 -- INFO is not permitted: losses are detected by the epoch alone
  end
  return tonumber((string.match(info, 'run_id:(%x+)') or '0'):sub(1, 13), 16)
end

local function new_record()
  return {
    version = VERSION, gate = 0, run = run_now(), shift = 0, hw = 0, far = 0, generation = 0, epoch = 0,
    penalty = 0, pause = 0, paused = 0, reset = 0, fence = 0, loss = 0, begun = 0, lull = 0, kept = 0,
    turns_end = 0, reach = 0, reach_until = 0, tombstones = 0, vacant_from = 0, vacant_to = 0,
    more = '',
  }
end

-- Discards the turns that are booked.
local function forget_turns(r)
  r.turns_end, r.vacant_from, r.vacant_to = 0, 0, 0
end

-- Moves the record to a clock that stepped back by `behind`.
local function step_back(r, behind)
  r.shift = r.shift + behind
  for _, field in ipairs({
    'far', 'penalty', 'fence', 'begun', 'lull', 'turns_end', 'reach_until', 'vacant_from', 'vacant_to',
  }) do
    r[field] = max(r[field] - behind, 0)
  end
  if r.pause ~= NEVER then
    r.pause = max(r.pause - behind, 0)
  end
end

-- Records a loss: slots up to the fence may have been granted and lost. `known` is the last epoch that a worker knew
-- of.
local function lose(r, now, known, fence)
  -- The new epoch is later than every epoch seen, so that epochs can be compared although clocks step.
  r.epoch = max(now, known + 1, r.epoch + 1)
  r.fence, r.loss = max(r.fence, fence), r.epoch
  forget_turns(r)
end

-- Reads the record and updates it for steps back, losses and restarts of the store. Returns it, and whether it
-- changed. `known` is the last epoch that the worker saw and `answered_at` the time of its last answer, `run` the id
-- of the process that it is connected to, `horizon` how far ahead slots are granted to it and its peers, `farthest`
-- the latest slot that it was granted itself. `reach` is how far ahead this call may be granted, where that is less.
local function follow_record(now, known, run, horizon, farthest, answered_at, reach)
  local r, changed, restarted = load_record(), false, false
  local is_new = not r
  if is_new then
    r = new_record()
  elseif run ~= r.run then
    -- The id is read from the server, so that a worker with an old connection cannot set it back.
    local actual = run_now()
    if actual ~= 0 and actual ~= r.run then
      r.run, restarted, r.kept = actual, true, r.hw
    end
  end
  local behind, granted = r.hw - now, r.far
  if behind > STEP then
    step_back(r, behind)
    r.hw, changed, granted = now, true, r.far
  elseif -behind >= TICK then
    r.hw, changed = now, true
  end
  reach = reach or horizon
  if now + reach > r.far then
    r.far, changed = now + TICK + reach, true
  end
  if is_new or known > r.epoch then
    lose(r, now, known, known > 0 and max(now + horizon, granted) or 0)
    r.begun, r.kept, changed = now, NEVER, true
  elseif restarted then
    r.begun, changed = now, true
    if known > 0 and answered_at > r.kept + TICK then
      lose(r, now, known, max(now + horizon, granted))
    else
      r.epoch = max(now, r.epoch + 1)
      forget_turns(r)
      r.lull = max(r.lull, now + min(horizon, max(SHORT, r.reach + (r.reach - r.reach % 4) / 4)))
    end
  elseif known > 0 and known < r.epoch then
    -- The loss was found by a worker that knew nothing from before it, or less.
    local is_lost = known < r.loss or answered_at > r.kept + TICK
    if is_lost and r.begun + horizon > r.fence then
      lose(r, now, known, r.begun + horizon)
      changed = true
    end
  end
  local slot = min(farthest, r.begun + horizon)
  if known > 0 and known < r.epoch and slot > max(r.lull, r.fence, now) then
    r.lull, changed = slot, true
  end
  return r, changed
end

-- The algorithms, by the code of the letter that a limit begins with among the arguments. Each has
--   read(l)                  its numbers from among the arguments
--   load(l)                  the state, or nil
--   save(l, s, px)
--   replace(l, s)            saves it without a TTL, if its TTL suffices; whether it does. `load` sets l.stored to
--                            the part of the state that determines its TTL, if it can be replaced like this
--   fresh(l, s)              the level of a limit that was never used
--   back(l, s, by)           the level on a clock that stepped back
--   adopt(l, s)              the level under these numbers
--   whole(l, s)              when it equals absence
--   earliest(l, s, now, cost)
--   commit(l, s, at, cost)
--   mark(l, s)               two numbers that, with last, tell states apart
--   undo(l, s, last, a, b, at, cost)   to the mark before
--   lose(l, s)               the state after a loss, behind the fence
--   restart(l, s, from)      the level of counts that begin at 0 at `from`; none where that is a fresh one
--   pause(l, s, till, now)   the state during and after a pause: nothing goes before its end
-- Windows also have
--   is_window                 all of it comes back at once, when a window ends
--   recall(l, s, now, loss)  with what the caller knows from before a loss; whether that is more
-- the log
--   is_read_in_parts          a call reads a part of its state
-- and the two whose state is more than its mark
--   standing(l, s, now)      units remaining, and when it is whole again
-- They are those of src/limit, in the same order, with the same names.
local kinds = {}

-- The first and the last instant after which an edge of a calendar is needed that the worker has not sent. The decision
-- continues with guessed edges, so that the last instant is about right.
local missing, missing_to = nil, nil

-- Reads `count` limits from the arguments. `fence` is where states start that the store has lost.
local function limits(count, fence)
  local all = {}
  for i = 1, count do
    local kind = kinds[number()]
    -- A table that is built with all of its fields need not grow.
    local l = {
      key = KEYS[i + 1], kind = kind, fence = fence, floor = fence,
      n = 0, state = false, stored = false, taken = false, corrected = false, unpaused = false,
    }
    kind.read(l)
    all[i] = l
  end
  return all
end

-- A state that was written by another algorithm or a later version keeps its frontier; its level starts again.
local function foreign(l, packed)
  if #packed < 26 then
    return nil
  end
  local s = {}
  s.last, s.shift, s.epoch = unpack_at('<ddd', packed, 3)
  l.kind.fresh(l, s)
  return s
end

-- The number that a state of this kind begins with.
local function head_of(letter)
  return letter:byte() + 256 * 49
end

-- Loads a state that is read as a whole, if it begins with this number; otherwise returns nil and the result of
-- `foreign`.
local function load_whole(l, head)
  local packed = l.packed
  if packed == nil then
    packed = redis.call('GET', l.key)
  end
  if not packed then
    return nil
  end
  if #packed < 26 or unpack_at('<H', packed) ~= head then
    return nil, foreign(l, packed)
  end
  return packed
end

-- Loads the states of many limits at once, except for those that are not read as a whole.
local function load_many(all)
  local keys, of = {}, {}
  for i = 1, #all do
    if not all[i].kind.is_read_in_parts then
      keys[#keys + 1], of[#of + 1] = all[i].key, all[i]
    end
  end
  for first = 1, #keys, 512 do
    local found = redis.call('MGET', unpack(keys, first, min(first + 511, #keys)))
    for i = 1, #found do
      of[first + i - 1].packed = found[i]
    end
  end
end

-- Saves a state with a TTL that ends KEPT after it equals absence. A state that was loaded in this call, and for which
-- its TTL is still long enough, is written without one: a SET with a TTL costs Redis three times as much.
local function save_state(l, s, now)
  if l.stored and not l.corrected and l.kind.replace(l, s) then
    return
  end
  local whole = max(l.kind.whole(l, s), l.floor)
  if whole <= now + 1000000 then
    return l.kind.save(l, s, '65000') -- the constant saves formatting a number
  end
  l.kind.save(l, s, int(math.ceil((whole - now + KEPT) / 1000)))
end
