-- Changes what holds for a whole downstream, and tells what does.
--
-- KEYS  1 record, 2 the terms
-- ARGV  1 'store' | 'clock', 2 the instant for the latter
--       3 the last epoch that the worker saw (0: none), 4 the run that it is connected to
--       5 H: how far ahead slots may have been granted that the store has lost
--       6 the channel on which changes are told, 7 the downstream
--       8 'look'
--         'penalize', for how long
--         'pause', for how long (-1: until somebody resumes)
--         'resume'
--         'terms', the generation that they replace, the terms
--         'recall', how much of the penalty is left, how much of the pause (-1: all of it), its version,
--         and where the worker knows terms their generation and the terms
-- Answer {now, epoch, penalty, pause, version, generation, reset, the terms or nil}

local now = instant(ARGV[1], ARGV[2])
local r, followed = follow_record(now, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
local op = ARGV[8]
local changed = false

local function after(span)
  return math.min(now + span, NEVER)
end

local function set(field, value)
  if r[field] ~= value then
    r[field], changed = value, true
  end
end

-- Later than every version before a loss too, so that what was done last counts.
local function next_version()
  return math.max(r.version + 1, now)
end

local function pause(span, version)
  set('pause', span < 0 and NEVER or span == 0 and 0 or after(span))
  set('version', version)
end

local function put_terms(generation, text)
  redis.call('SET', KEYS[2], text)
  r.generation, changed = generation, true
end

if op == 'penalize' then
  set('penalty', math.max(r.penalty, after(tonumber(ARGV[9]))))
elseif op == 'pause' then
  pause(tonumber(ARGV[9]), next_version())
elseif op == 'resume' then
  set('penalty', 0)
  pause(0, next_version())
elseif op == 'terms' then
  if tonumber(ARGV[9]) == r.generation then
    put_terms(r.generation + 1, ARGV[10])
  end
elseif op == 'recall' then
  local penalty, version = tonumber(ARGV[9]), tonumber(ARGV[11])
  if penalty > 0 then
    set('penalty', math.max(r.penalty, after(penalty)))
  end
  if version > r.version then
    pause(tonumber(ARGV[10]), version)
  end
  local generation, terms = tonumber(ARGV[12] or 0), ARGV[13]
  if terms and (generation > r.generation or (generation == r.generation and redis.call('EXISTS', KEYS[2]) == 0)) then
    put_terms(generation, terms)
  end
end

if followed or changed then
  save_record(r)
end
if changed then
  -- Where it is not permitted the others look now and then.
  redis.pcall('PUBLISH', ARGV[6], ARGV[7])
end
return { now, r.epoch, r.penalty, r.pause, r.version, r.generation, r.reset, redis.call('GET', KEYS[2]) }
