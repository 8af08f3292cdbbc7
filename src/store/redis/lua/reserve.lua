-- Reserves slots for jobs, or decides whether each fits now. A refusal consumes nothing.
--
-- KEYS  1 record, 2.. the state of each limit; with a lease, then the leases
-- ARGV  1 'store' | 'clock', 2 the instant for the latter
--       3 the last epoch that the worker saw (0: none), 4 the run that it is connected to
--       5 H: how far ahead slots may have been granted that the store has lost
--       6 how far ahead a slot may lie, 7 the latest slot that is exact
--       8 the replica that lives ('': no lease), 9 for how long
--       10 'all' | 'any' | 'one', 11 'shape' | 'police'
--       12 1 if the worker derives the rest from the marks, else 0
--       13 the generation of the terms that the limits are from (0: nobody's business)
--       14 how many limits, then each; then how many costs a job has (1: the same for each limit),
--       unless the worker derives it what a unit costs each limit, then runs of costs and how many
--       jobs have them
-- Answer {now, epoch, replicas that live (0 without a lease), granted, first slot refused or -1,
--         its limit, the next slot, {last, a, b of each limit before}, {outcomes},
--         {penalty, pause, version, generation, reset}}
--        An outcome is slot, charge of each job granted; for a policer earliest, charge, limit of each
--        job, and for each limit whose standing is not in its mark units remaining and when it is
--        whole. A charge has bit i set for the limit at place i.
--        Where edges of a calendar are missing: {the first instant to send edges for, -1, 0, 0, -1, 0,
--        the last, ...}, and nothing is written. Where other terms are in force nothing is granted.

local now = instant(ARGV[1], ARGV[2])
local known, run, horizon = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local last_slot = math.min(now + tonumber(ARGV[6]), tonumber(ARGV[7]))
local replica, ttl = ARGV[8], tonumber(ARGV[9])
local combine, police, derived = ARGV[10], ARGV[11] == 'police', ARGV[12] == '1'
local generation, count = tonumber(ARGV[13]), tonumber(ARGV[14])

local record, changed = follow_record(now, known, run, horizon)
local outdated = generation ~= 0 and generation ~= record.generation
local stopped = record.pause == NEVER
local paused = stopped and 0 or math.max(record.penalty, record.pause)

-- The states, corrected for steps back and losses.
local all, at = limits(count, 15, record.fence)
local before = {}
for i = 1, count do
  local l = all[i]
  local kind, s = l.kind, load_state(l)
  if s then
    if s.shift < record.shift then
      local by = record.shift - s.shift
      kind.back(l, s, by)
      s.last = math.max(s.last - by, 0)
      s.shift = record.shift
      l.corrected = true
    end
    kind.adopt(l, s)
    if s.epoch ~= record.epoch then
      kind.lose(l, s)
      -- A state that outlived its record counts on the shift of the lost one, which may be larger.
      s.epoch, s.shift = record.epoch, record.shift
      l.corrected = true
    end
    if math.max(kind.whole(l, s), l.floor) + GRACE <= record.hw then
      s = nil
      l.corrected = false
    end
  end
  if not s then
    s = { last = 0, shift = record.shift, epoch = record.epoch }
    kind.fresh(l, s)
    if record.fence > 0 then
      kind.lose(l, s)
    end
  end
  -- After a reset under this epoch nothing counts that was known before a loss.
  if kind.recall and record.reset <= record.epoch and kind.recall(l, s, now, record.epoch) then
    l.corrected = true
  end
  if paused > 0 then
    -- Not written down unless something is taken: who resumes finds the state as it was.
    l.unpaused = { s.last, s.tat, s.rem, s.tail }
    kind.pause(l, s, paused, now)
  end
  l.state = s
  local a, b = kind.mark(l, s)
  local m = 3 * i - 2
  before[m], before[m + 1], before[m + 2] = s.last, a, b
end

-- The costs of a run of jobs, by limit, and whether they cost nothing at all.
local width = tonumber(ARGV[at])
local costs, peek = {}, false
local function read_costs(from)
  local sum = 0
  for i = 1, count do
    costs[i] = tonumber(ARGV[width == 1 and from or from + i - 1])
    sum = sum + costs[i]
  end
  peek = sum == 0
end

-- When a job fits, the first limit that says so, and which limits it is charged to.
local function choose()
  if stopped then
    return NEVER, 0, 0
  end
  local slot, binding, charge, bit = nil, 0, 0, 1
  for i = 1, count do
    if peek or costs[i] > 0 then
      local l = all[i]
      local due = l.kind.earliest(l, l.state, now, costs[i])
      if not slot then
        slot, binding, charge = due, i - 1, bit
      elseif combine == 'all' then
        charge = charge + bit
        if due > slot then
          slot, binding = due, i - 1
        end
      elseif due < slot then
        slot, binding, charge = due, i - 1, bit
      elseif due == slot and combine == 'any' then
        charge = charge + bit
      end
    end
    bit = bit * 2
  end
  return slot, binding, peek and 0 or charge
end

local function commit(slot, charge)
  for i = 1, count do
    local own = charge % 2
    charge = (charge - own) / 2
    if own == 1 then
      local l = all[i]
      l.kind.commit(l, l.state, slot, costs[i])
      l.taken = true
    end
  end
end

local outcomes = {}
local function tell(slot, charge)
  local n = #outcomes
  outcomes[n + 1], outcomes[n + 2] = slot, charge
end

local granted, refused, binding = 0, -1, 0
local function grant_slot()
  local slot, limit, charge = choose()
  if slot > last_slot then
    refused, binding = slot, limit
    return
  end
  commit(slot, charge)
  granted = granted + 1
  if not derived then
    tell(slot, charge)
  end
end

-- Decides on the first of so many jobs that are alike. Where it is refused so are the others, and what is
-- told of it holds for them: nothing was taken. Answers for how many it decided.
local function decide(jobs)
  local earliest, limit, charge = choose()
  local decided = 1
  if earliest > now then
    charge, decided = 0, jobs
  else
    commit(now, charge)
    granted = granted + 1
  end
  if derived then
    return decided
  end
  local from = #outcomes
  tell(earliest, charge)
  outcomes[from + 3] = limit
  for i = 1, count do
    local l = all[i]
    if l.kind.standing then
      tell(l.kind.standing(l, l.state, now))
    end
  end
  local size = #outcomes - from
  for i = #outcomes + 1, from + size * decided do
    outcomes[i] = outcomes[i - size]
  end
  return decided
end

local unit = at
at = at + 1 + (derived and 0 or count)
while ARGV[at] and refused < 0 and not outdated do
  read_costs(at)
  local left = tonumber(ARGV[at + width])
  while left > 0 and refused < 0 do
    if police then
      left = left - decide(left)
    else
      grant_slot()
      left = left - 1
    end
  end
  at = at + width + 1
end
if missing then
  return { missing, -1, 0, 0, -1, 0, missing_to, {}, {}, {} }
end
local next_slot = refused
if not derived and not police and refused < 0 then
  for i = 1, count do
    costs[i] = tonumber(ARGV[unit + i])
  end
  peek = false
  next_slot = choose()
end

-- All is decided. Corrections are written even when nothing is granted: a fence that is not
-- written never ends.
if changed then
  save_record(record)
end
for i = 1, count do
  local l = all[i]
  if l.corrected and not l.taken and l.unpaused then
    local s = l.state
    s.last, s.tat, s.rem, s.tail = l.unpaused[1], l.unpaused[2], l.unpaused[3], l.unpaused[4]
  end
  if l.taken or l.corrected then
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
local status = { record.penalty, record.pause, record.version, record.generation, record.reset }
return { now, record.epoch, replicas, granted, refused, binding, next_slot, before, outcomes, status }
