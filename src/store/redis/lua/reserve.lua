-- Reserves slots for jobs, or decides whether each fits now. A refusal consumes nothing.
--
-- KEYS  1 record, 2.. the state of each limit; with a lease, then the leases
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker saw (0:
--         none), the run that it is connected to, how far ahead slots are granted to it and those like it, the
--         farthest slot that it was granted, when it was answered last, how far ahead a slot may lie, the latest slot that is exact,
--         0 (all) | 1 (any) | 2 (one of), 1 to police or else 0, 1 if the worker derives slots from the marks or
--         else 0, the generation of the terms that the limits are from (0: nobody's business), for how long the
--         replica lives (0: no lease);
--         1 if it takes turns, or else 0; then of its turn the begin (-1: it has none), units, spacing and lead, how
--         far ahead it needs turns to be booked, the units that wait, and how many of the limits are the whole
--         downstream's: the first ones, how far apart slots of these lie at most in the long run, and 1 if it asks for others of its jobs at the same turn;
--         how many limits, then each, then what a unit costs each; how many costs a job has (1: the same for each
--         limit), then runs of costs and how many jobs have them
--       2 the replica that lives
-- Answer doubles: generation, epoch, penalty, pause, paused, reset, now; from when on it was decided, replicas that
--         live (0 without a lease), granted, first slot refused or -1, its limit, the next slot (-1: not asked for);
--         how far ahead turns are booked (0: it takes none), and of its next turn the begin (-1: none), units,
--         spacing and lead; last, a, b of each limit before; then outcomes.
--         An outcome is slot, charge of each job granted; for a policer earliest, charge, limit of each job, and
--         for each limit whose standing is not in its mark units remaining and when it is whole. A charge has bit
--         i set for the limit at place i.
--         Where edges of a calendar are missing: two doubles, from when to when to send edges for, and nothing is
--         written. Where other terms are in force nothing is granted.

local now = instant(number())
local record, changed = follow_record(now, number(), number(), number(), number(), number())
local last_slot = math.min(now + number(), number())
local combine, police, derived = number(), number() == 1, number() == 1
local generation, ttl, turns = number(), number(), number() == 1
local begins, turn_units, turn_spacing, turn_lead, reach, waiting, own_limits, interval, goes_on
if turns then
  begins, turn_units, turn_spacing, turn_lead = number(), number(), number(), number()
  reach, waiting, own_limits, interval, goes_on = number(), number(), number(), number(), number() == 1
  if begins >= 0 then
    last_slot = math.min(last_slot, turn_end(now, begins, turn_units, turn_spacing, turn_lead))
  end
end
local count = number()

local outdated = generation ~= 0 and generation ~= record.generation
local stopped = record.pause == NEVER
local paused = stopped and 0 or math.max(record.penalty, record.pause)
-- A policer has no slots that a server could have granted and lost.
local from = police and now or math.max(now, record.lull)

-- The states, corrected for steps back and losses.
local all = limits(count, police and record.fence or math.max(record.fence, record.lull))
local before = {}
for i = 1, count do
  local l = all[i]
  local kind = l.kind
  local s = kind.load(l)
  if s then
    local is_lost = s.epoch < record.loss or s.epoch > record.epoch
    if s.shift < record.shift and s.epoch <= record.epoch then
      local by = record.shift - s.shift
      kind.back(l, s, by)
      s.last = math.max(s.last - by, 0)
      s.shift = record.shift
      l.corrected = true
    end
    kind.adopt(l, s)
    if is_lost then
      kind.lose(l, s)
      -- A state that outlived its record counts on the shift of the lost one, which may be larger.
      s.shift = record.shift
    end
    if s.epoch ~= record.epoch then
      s.epoch = record.epoch
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
    if l.fence > 0 then
      kind.lose(l, s)
    end
  end
  -- After a reset under this epoch nothing counts that was known before a loss.
  if kind.recall and record.reset <= record.epoch and kind.recall(l, s, now, record.loss) then
    l.corrected = true
  end
  if paused > 0 then
    -- Not written down unless something is taken: who resumes finds the state as it was.
    l.unpaused = { s.last, s.tat, s.rem, s.tail }
    kind.pause(l, s, paused, now)
  end
  l.state = s
  local a, b = kind.mark(l, s)
  before[i] = pack('<ddd', s.last, a, b)
end

local unit = {}
for i = 1, count do
  unit[i] = number()
end
-- The costs of a run of jobs, by limit, and whether they cost nothing at all.
local width = number()
local costs, peek = {}, false
local function read_costs()
  local sum, same = 0, width == 1 and number()
  for i = 1, count do
    costs[i] = same or number()
    sum = sum + costs[i]
  end
  peek = sum == 0
end

-- When a job fits, the first limit that says so, and which limits it is charged to.
local function choose(places)
  if stopped then
    return NEVER, 0, 0
  end
  local slot, binding, charge, bit = nil, 0, 0, 1
  for i = 1, places do
    if peek or costs[i] > 0 then
      local l = all[i]
      local due = l.kind.earliest(l, l.state, from, costs[i])
      if not slot then
        slot, binding, charge = due, i - 1, bit
      elseif combine == 0 then
        charge = charge + bit
        if due > slot then
          slot, binding = due, i - 1
        end
      elseif due < slot then
        slot, binding, charge = due, i - 1, bit
      elseif due == slot and combine == 1 then
        charge = charge + bit
      end
    end
    bit = bit * 2
  end
  return slot or from, binding, peek and 0 or charge
end

local function commit(slot, charge, places)
  for i = 1, places do
    local own = charge % 2
    charge = (charge - own) / 2
    if own == 1 then
      local l = all[i]
      l.kind.commit(l, l.state, slot, costs[i])
      l.taken = true
    end
  end
end

local outcomes, told_of = {}, 0
local function tell(a, b)
  told_of = told_of + 1
  outcomes[told_of] = pack('<dd', a, b)
end

local granted, refused, binding, units, cost = 0, -1, 0, 0, 1
local function grant_slot()
  local slot, limit, charge = choose(count)
  if slot > last_slot then
    refused, binding, cost = slot, limit, math.max(floor(costs[1] / unit[1]), 1)
    return
  end
  commit(slot, charge, count)
  granted, units = granted + 1, units + floor(costs[1] / unit[1])
  if not derived then
    tell(slot, charge)
  end
end

-- Decides on the first of so many jobs that are alike. Where it is refused so are the others, and what is
-- told of it holds for them: nothing was taken. Answers for how many it decided.
local function decide(jobs)
  local earliest, limit, charge = choose(count)
  local decided = 1
  if earliest > now then
    charge, decided = 0, jobs
  else
    commit(now, charge, count)
    granted = granted + 1
  end
  if derived then
    return decided
  end
  local first = told_of + 1
  tell(earliest, charge)
  outcomes[told_of] = outcomes[told_of] .. pack('<d', limit)
  for i = 1, count do
    local l = all[i]
    if l.kind.standing then
      tell(l.kind.standing(l, l.state, now))
    end
  end
  local outcome = table.concat(outcomes, '', first)
  for i = first + 1, told_of do
    outcomes[i] = nil
  end
  outcomes[first] = outcome:rep(decided)
  told_of = first
  return decided
end

while at <= #args and refused < 0 and not outdated do
  read_costs()
  local left = number()
  while left > 0 and refused < 0 do
    if police then
      left = left - decide(left)
    else
      grant_slot()
      left = left - 1
    end
  end
end
if missing then
  return pack('<dd', missing, missing_to)
end

-- All is decided. Corrections are written even when nothing is granted: a fence that is not written never ends.
for i = 1, count do
  local l = all[i]
  if l.corrected and not l.taken and l.unpaused then
    local s = l.state
    s.last, s.tat, s.rem, s.tail = l.unpaused[1], l.unpaused[2], l.unpaused[3], l.unpaused[4]
  end
  if l.taken or l.corrected then
    save_state(l, l.state, now)
  end
  if l.unpaused and not l.taken and not stopped then
    l.kind.pause(l, l.state, paused, now)
  end
end

-- What is only told: the next slot, and how far behind it the one after it is.
for i = 1, count do
  costs[i] = unit[i]
end
peek = false
local next_slot = refused
if not derived and not police and refused < 0 then
  next_slot = choose(count)
end
local turn, units_next, spacing, lead = -1, 0, 0, 0
if turns then
  record.reach, record.reach_until = reached(now, reach, record.reach, record.reach_until)
  changed = true
  local free, charge, _
  if waiting > units and not outdated and not stopped and (refused < 0 or binding < own_limits) then
    free, _, charge = choose(own_limits)
    if goes_on and begins >= 0 and math.max(free, refused) <= turn_end(now, begins, turn_units, turn_spacing, turn_lead) then
      free = nil -- the turn is not used up
    end
  end
  if free then
    if refused > free then
      -- A unit may go before, but not the job that was refused.
      free, spacing = refused, interval
    else
      commit(free, charge, own_limits)
      spacing = choose(own_limits) - free
    end
    turn, units_next, lead, record.turns_end, spacing =
      next_turn(now, free, spacing, waiting - units, cost, record.reach, record.turns_end, interval)
    ttl = math.max(ttl, ttl > 0 and math.min(2 * (turn - now), LONGEST_LEASE) or 0)
  end
end
if changed then
  save_record(record)
end

local replicas = 0
if ttl > 0 then
  local leases = KEYS[count + 2]
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', int(now))
  -- One that lies further ahead was given before the clock stepped back.
  redis.call('ZREMRANGEBYSCORE', leases, '(' .. int(now + LONGEST_LEASE), '+inf')
  redis.call('ZADD', leases, int(now + ttl), ARGV[2])
  redis.call('PEXPIRE', leases, int((LONGEST_LEASE + GRACE) / 1000))
  replicas = redis.call('ZCARD', leases)
end
local decided = pack('<dddddd', from, replicas, granted, refused, binding, next_slot)
local booked = pack('<ddddd', turns and record.reach or 0, turn, units_next, spacing, lead)
return stamp(now, record) .. decided .. booked .. table.concat(before) .. table.concat(outcomes)
