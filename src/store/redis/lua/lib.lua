-- Shared by the other scripts: it is put in front of each.
--
-- All instants are microseconds on the store's clock, all numbers integers below 2^53, so that a
-- double holds them exactly. The same arithmetic is in src/limit.
--
-- A record (string, no TTL): the doubles epoch, run, reset (the version of the last one), fence, hw, shift,
-- then penalty, pause (until when), version (of the pause) and generation (of the terms), packed.
-- A state (string, TTL): "KIND last shift epoch ..."; last is the latest slot, shift and epoch those
-- of the record when it was written. What follows is the kind's own. In the GCRA family's, which most
-- calls read and write, and in a log's the letter is followed by packed doubles instead of text.

local GRACE = 60000000 -- how long a state is kept once it equals absence
local LONGEST_LEASE = 60000000
local STEP = 100000 -- a clock further behind than this has stepped back
local NEVER = 9007199254740991 -- 2^53 - 1: a cost that never fits
local TICK = 25000 -- the highest instant is written down when it has risen by as much

local format, match, floor = string.format, string.match, math.floor

local function int(n)
  return format('%.0f', n)
end

-- The instant to decide at: the store's clock ('store'), or a test's.
local function instant(mode, given)
  if mode == 'store' then
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2]
  end
  return tonumber(given)
end

local RECORD, RECORD_BYTES = '<dddddddddd', 80

local function load_record()
  local packed = redis.call('MGET', KEYS[1])[1]
  if not packed or #packed ~= RECORD_BYTES then
    return nil -- none, or an older version's
  end
  local r = {}
  r.epoch, r.run, r.reset, r.fence, r.hw, r.shift, r.penalty, r.pause, r.version, r.generation =
    struct.unpack(RECORD, packed)
  return r
end

local function save_record(r)
  local packed = struct.pack(
    RECORD,
    r.epoch,
    r.run,
    r.reset,
    r.fence,
    r.hw,
    r.shift,
    r.penalty,
    r.pause,
    r.version,
    r.generation
  )
  redis.call('SET', KEYS[1], packed)
end

-- The server's process: as much of its run_id as a double holds.
local function run_now()
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    return 0 -- not permitted: losses show by the epoch alone
  end
  return tonumber((match(info, 'run_id:(%x+)') or '0'):sub(1, 13), 16)
end

-- The record, followed over steps back and losses of the store, and whether that changed it. `known` is
-- the last epoch that the worker saw, `run` the one that it is connected to, `horizon` how far ahead
-- slots may have been granted that are lost.
local function follow_record(now, known, run, horizon)
  local r, changed, lost = load_record(), false, false
  if not r then
    r = { epoch = 0, run = run_now(), reset = 0, fence = 0, hw = 0, shift = 0 }
    r.penalty, r.pause, r.version, r.generation = 0, 0, 0, 0
    changed, lost = true, known > 0
  else
    if run ~= r.run then
      -- Asked here, so that a worker with an old connection cannot turn it back.
      local actual = run_now()
      if actual ~= 0 and actual ~= r.run then
        r.run = actual
        lost = true
      end
    end
    lost = lost or known > r.epoch
  end
  local behind = r.hw - now
  if behind > STEP then
    r.shift = r.shift + behind
    r.fence = math.max(r.fence - behind, 0)
    r.penalty = math.max(r.penalty - behind, 0)
    if r.pause ~= NEVER then
      r.pause = math.max(r.pause - behind, 0)
    end
    r.hw = now
    changed = true
  elseif -behind >= TICK then
    r.hw = now
    changed = true
  end
  if lost or r.epoch == 0 then
    -- Later than every epoch seen, so that epochs compare although clocks step.
    r.epoch = math.max(now, known + 1, r.epoch + 1)
    changed = true
  end
  if lost then
    r.fence = now + horizon
  end
  return r, changed
end

-- The algorithms, by the letter that a limit begins with in ARGV. Each has
--   read(l, at)              its numbers from ARGV[at] on; answers what comes after them
--   parse(l, text)           a state of its own kind, or nil
--   text(l, s)               a state as it is written
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
-- windows also
--   recall(l, s, now, epoch) with what the caller knows from before a loss; whether that is more
-- instead of parse and text, where a state is not read and written whole
--   load(l)                  the state, or nil
--   save(l, s, px)
-- and the two whose state is more than its mark
--   standing(l, s, now)      units remaining, and when it is whole again
-- They are those of src/limit, in the same order, with the same names.
local kinds = {}

-- The first and the last instant after which a calendar's edge is asked for that the worker has not sent.
-- Where there is one the decision goes on with guesses, so that the last is about right.
local missing, missing_to = nil, nil

-- The limits: `count` of them in ARGV from `at` on; and where they end. `fence` is where states start
-- that the store has lost.
local function limits(count, at, fence)
  local all = {}
  for i = 1, count do
    local kind = kinds[ARGV[at]]
    local l = { key = KEYS[i + 1], kind = kind, letter = ARGV[at] }
    at = kind.read(l, at + 1, fence)
    all[i] = l
  end
  return all, at
end

-- Of a state that another algorithm wrote the frontier stands.
local function foreign(l, text)
  local last, shift, epoch = match(text, '^%a (%d+) (%d+) (%d+)')
  if (text:byte() == 116 or text:byte() == 108) and #text >= 25 then
    last, shift, epoch = struct.unpack('<ddd', text, 2)
  elseif not last then
    return nil -- an older version's
  end
  local s = { last = tonumber(last), shift = tonumber(shift), epoch = tonumber(epoch) }
  l.kind.fresh(l, s)
  return s
end

local function load_state(l)
  if l.kind.load then
    return l.kind.load(l)
  end
  local text = redis.call('GET', l.key)
  if not text then
    return nil
  end
  return l.kind.parse(l, text) or foreign(l, text)
end

-- Lives until it equals absence, and GRACE more.
local function save_state(l, s, now)
  local whole = math.max(l.kind.whole(l, s), l.floor, now)
  local px = math.ceil((whole - now) / 1000) + GRACE / 1000
  if l.kind.save then
    l.kind.save(l, s, int(px))
  else
    redis.call('SET', l.key, l.kind.text(l, s), 'PX', int(px))
  end
end
