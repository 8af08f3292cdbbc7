-- Changes the record of a downstream, and returns it.
--
-- KEYS  1 record, 2 the terms, 3 the note on the pause: the version of the pause, a colon and the text,
--       4 the cool-down
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker saw (0:
--         none), the run that it is connected to, how far ahead slots are granted to it and those like it, the
--         farthest slot that it was granted, when it was answered last; then those of the change
--       2 the channel on which changes are published, 3 the downstream
--       4 the change, and its numbers:
--         'read'
--         'penalize', for how long
--         'pause', for how long (-1: until somebody resumes)
--         'resume'
--         'terms', the generation that they replace
--         'recall', how much of the penalty is left, how much of the pause (-1: all of it), its version, and the
--         generation of the terms that the worker knows
--         'refused' or 'again', the wait before the first probe, the longest wait
--         'probe', how long the lease on the probe lasts
--         'over'
--       5 for 'terms', and for 'recall' where the worker knows them: the terms; for 'pause' the note, empty for none;
--         for the last four the replica
-- Answer doubles: generation, epoch, penalty, pause, paused, reset, tombstones, now; the terms or nil; the note or an
--        empty text; the level of the cool-down, its instants and its holder, or nil

local DAY = 86400000 -- ms
local LAST_OF_NOTE = '1040' -- its last byte: a version of 16 digits, a colon, 1024 bytes

local now = instant(number())
local r, followed = follow_record(now, number(), number(), number(), number(), number())
local op, text = ARGV[4], ARGV[5]
local cool_down = load_cool_down(KEYS[4], r, now)
local changed = false

local function after(span)
  return min(now + span, NEVER)
end

local function set(field, value)
  if r[field] ~= value then
    r[field], changed = value, true
  end
end

-- Not below the store's now, so that a change after a loss has a later version than any before it.
local function next_version()
  return max(r.paused + 1, now)
end

local function pause(span, version)
  set('pause', span < 0 and NEVER or span == 0 and 0 or after(span))
  set('paused', version)
  -- Turns that were booked behind the end of the pause begin too late now.
  forget_turns(r)
end

-- The note says who paused and why. It outlives a pause by a day, for later readers.
local function put_note()
  if text == '' then
    redis.call('DEL', KEYS[3])
    return
  end
  local px = r.pause == NEVER and 400 * DAY or math.ceil((r.pause - now) / 1000) + DAY
  redis.call('SET', KEYS[3], int(r.paused) .. ':' .. text, 'PX', int(px))
end

local function put_terms(generation)
  redis.call('SET', KEYS[2], text)
  r.generation, changed = generation, true
  forget_turns(r)
end

local function put_cool_down(c)
  cool_down, changed = c, true
  save_cool_down(KEYS[4], c, r, now)
end

-- Starts a wait that doubles with each level. Replicas that do not know cool-downs respect the penalty.
local function wait(level)
  local first, most = number(), number()
  local from = after(min(first * 2 ^ level, most))
  put_cool_down({ level = level, from = from, ends = 0, holder = '' })
  set('penalty', max(r.penalty, from))
end

local function hold_probe()
  local ends = after(number())
  if cool_down.holder ~= text or cool_down.ends ~= ends then
    put_cool_down({ level = cool_down.level, from = cool_down.from, ends = ends, holder = text })
  end
end

local function change_cool_down()
  if not cool_down then
    if op == 'refused' then
      wait(0)
    end
  elseif cool_down.holder == text then
    if op == 'refused' then
      wait(min(cool_down.level + 1, HIGHEST_LEVEL))
    elseif op == 'again' then
      wait(cool_down.level)
    elseif op == 'probe' then
      hold_probe()
    elseif op == 'over' then
      redis.call('DEL', KEYS[4])
      cool_down, changed = nil, true
    end
  elseif op == 'probe' and cool_down.from <= now and cool_down.ends <= now then
    hold_probe()
  end
end

if op == 'penalize' then
  set('penalty', max(r.penalty, after(number())))
elseif op == 'pause' then
  pause(number(), next_version())
  put_note()
elseif op == 'resume' then
  set('penalty', 0)
  pause(0, next_version())
  redis.call('DEL', KEYS[3], KEYS[4])
  cool_down = nil
elseif op == 'terms' then
  if number() == r.generation then
    put_terms(r.generation + 1)
  end
elseif op == 'recall' then
  local penalty, left, version, generation = number(), number(), number(), number()
  if penalty > 0 then
    set('penalty', max(r.penalty, after(penalty)))
  end
  if version > r.paused then
    pause(left, version)
  end
  if text and (generation > r.generation or (generation == r.generation and redis.call('EXISTS', KEYS[2]) == 0)) then
    put_terms(generation)
  end
elseif op ~= 'read' then
  change_cool_down()
end

if followed or changed then
  save_record(r)
end
if changed then
  -- If PUBLISH is not permitted, the others learn of it when they next read the record.
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
return {
  stamp(now, r),
  redis.call('GET', KEYS[2]),
  redis.call('GETRANGE', KEYS[3], '0', LAST_OF_NOTE),
  cool_down_answer(cool_down),
}
