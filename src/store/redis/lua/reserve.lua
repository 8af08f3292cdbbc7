-- Reserves slots for jobs, all of whose limits must agree. A refusal consumes nothing.
--
-- KEYS  1 record, 2.. the state of each limit; with a lease, then the leases
-- ARGV  1 'store' | 'clock' | 'at', 2 the instant for the latter two
--       3 the last epoch that the worker saw (0: none), 4 the run_id that it is connected to
--       5 H: how far ahead slots may have been granted that the store has lost
--       6 how far ahead a slot may lie, 7 the latest slot that is exact
--       8 the replica that lives ('': no lease), 9 for how long
--       10 how many limits, then N, P and burst of each; then pairs of a cost and how many jobs
-- Answer {now, epoch, slots granted, first slot refused or -1, {tat, rem of each limit before},
--         replicas that live (0 without a lease)}

local now, live = instant(ARGV[1], ARGV[2])
local known, run, horizon = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local last_slot = math.min(now + tonumber(ARGV[6]), tonumber(ARGV[7]))
local replica, ttl = ARGV[8], tonumber(ARGV[9])
local count = tonumber(ARGV[10])

local function run_id()
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    return '' -- not permitted: losses show by the epoch alone
  end
  return string.match(info, 'run_id:(%x+)') or ''
end

-- The record, followed over steps back and losses of the store.
local record = load_record()
local changed, lost = false, false
if not record then
  record = { epoch = 0, run = run_id(), at = now, fence = 0, hw = 0, shift = 0 }
  changed, lost = true, known > 0
else
  if run ~= record.run then
    -- Asked here, so that a worker with an old connection cannot turn it back.
    local actual = run_id()
    if actual ~= '' and actual ~= record.run then
      record.run = actual
      lost = true
    end
  end
  lost = lost or known > record.epoch
end
if live then
  local behind = record.hw - now
  if behind > STEP then
    record.shift = record.shift + behind
    record.at = math.max(record.at - behind, 0)
    record.fence = math.max(record.fence - behind, 0)
    record.hw = now
  end
  record.hw = math.max(record.hw, now)
  changed = true
end
if lost or record.epoch == 0 then
  -- Later than every epoch seen, so that epochs compare although clocks step.
  record.epoch = math.max(now, known + 1, record.epoch + 1)
  record.at = now
  changed = true
end
if lost then
  record.fence = now + horizon
end

-- The states, corrected for steps back and losses.
local all = limits(count, 11, record.fence)
local before = {}
for i, l in ipairs(all) do
  local s = load_state(l.key)
  if s then
    if live and s.shift < record.shift then
      local back = record.shift - s.shift
      if s.tat < back then
        s.tat, s.rem = 0, 0
      else
        s.tat = s.tat - back
      end
      s.last = math.max(s.last - back, 0)
      s.shift = record.shift
      l.corrected = true
    end
    if s.epoch ~= record.epoch then
      if s.tat < l.floor or (s.tat == l.floor and s.rem < l.floor_rem) then
        s.tat, s.rem = l.floor, l.floor_rem
      end
      -- A state that outlived its record counts on the shift of the lost one, which may be larger.
      s.epoch, s.shift = record.epoch, record.shift
      l.corrected = true
    end
    if s.rem >= l.n then
      s.tat, s.rem = s.tat + 1, 0 -- written under another rate
    end
    if live and math.max(s.tat, l.floor) + GRACE <= record.hw then
      s = nil
      l.corrected = false
    end
  end
  if not s then
    s = { tat = l.floor, rem = l.floor_rem, last = 0, shift = record.shift, epoch = record.epoch }
  end
  l.state = s
  before[#before + 1] = s.tat
  before[#before + 1] = s.rem
end

local function slot_of_next()
  local slot = now
  for _, l in ipairs(all) do
    local due = ceil(advance(l, l.state.tat, l.state.rem, 1 - l.burst))
    slot = math.max(slot, due)
  end
  return slot
end

local function commit(slot, cost)
  for _, l in ipairs(all) do
    local s = l.state
    if ceil(s.tat, s.rem) < slot then
      s.tat, s.rem = slot, 0
    end
    s.tat, s.rem = advance(l, s.tat, s.rem, cost)
    s.last = slot
  end
end

local granted, refused = 0, -1
local at = 11 + count * 3
while ARGV[at] and refused < 0 do
  local cost, jobs = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  for _ = 1, jobs do
    local slot = slot_of_next()
    if slot > last_slot then
      refused = slot
      break
    end
    commit(slot, cost)
    granted = granted + 1
  end
  at = at + 2
end

-- All is decided. Corrections are written even when nothing is granted: a fence that is not
-- written never ends.
if changed then
  redis.call('HSET', KEYS[1], 'epoch', int(record.epoch), 'run', record.run, 'at', int(record.at),
    'fence', int(record.fence), 'hw', int(record.hw), 'shift', int(record.shift))
end
for _, l in ipairs(all) do
  if granted > 0 or l.corrected then
    save_state(l, l.state, now)
  end
end
local replicas = 0
if replica ~= '' then
  local leases = KEYS[count + 2]
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', int(now))
  -- One that lies further ahead was given before the clock stepped back.
  redis.call('ZREMRANGEBYSCORE', leases, '(' .. int(now + LONGEST_LEASE), '+inf')
  redis.call('ZADD', leases, int(now + ttl), replica)
  redis.call('PEXPIRE', leases, int(math.ceil(ttl / 1000) + GRACE / 1000))
  replicas = redis.call('ZCARD', leases)
end
return { now, record.epoch, granted, refused, before, replicas }
