-- Reserves slots for jobs, or decides whether each fits now. A refusal consumes nothing. This is the first of three
-- parts: jobs.lua or lanes.lua decides, and finish.lua writes and answers.
--
-- KEYS  1 record, 2.. the state of each limit; with a lease or a shared horizon, then the leases
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker saw (0:
--         none), the run that it is connected to, how far ahead slots are granted to it and those like it, the
--         farthest slot that it was granted, when it was answered last, how far ahead a slot may lie, the latest slot that is exact,
--         0 (all) | 1 (any) | 2 (one of), 1 to police or else 0, 1 if the worker derives slots from the marks or
--         else 0, the generation of the terms that the limits are from (0: any), for how long the
--         replica lives (0: no lease; below 0: it takes none, and while others wait in order or hold one, no slot
--         lies further ahead than its negative less 1, in µs, and it takes turns only then);
--         1 if it takes turns, or else 0, and 2 more if others wait in order where it is; then of the turn that it holds the begin (-1: it has none), units, spacing and lead, how
--         far ahead it needs turns to be booked, the units that wait, and how many of the limits are the whole
--         downstream's: the first ones, how far apart slots of these lie at most in the long run, 1 if it asks for others of its jobs at the same turn, and how far ahead a turn may begin;
--         how many limits, then each, then what a unit costs each; then what jobs.lua or lanes.lua reads
--       2 the replica that lives
-- Answer doubles: generation, epoch, penalty, pause, paused, reset, tombstones, now; from when on it was decided, replicas that
--         live (0 without a lease), for how many jobs there are outcomes, or granted where the worker derives slots,
--         first slot refused or -1, its limit, the next slot (-1: not asked for);
--         how far ahead turns are booked (0: it takes none), and of its next turn the begin (-1: none), units,
--         spacing and lead; last, a, b of each limit before; then outcomes.
--         An outcome is slot, charge of a job granted, or the slot that it would have had, -1 - limit of one that was
--         passed over; for a policer earliest, charge, limit of each job, and
--         for each limit whose standing is not in its mark units remaining and when it is whole. A charge has bit
--         i set for the limit with index i.
--         Where edges of a calendar are missing: two doubles, from when to when to send edges for, and nothing is
--         written. Where other terms are in force nothing is granted.

local given, known, run, horizon, farthest, seen, ahead, exact, combine, policer, derives, generation, ttl, asks
given, known, run, horizon, farthest, seen, ahead, exact, combine, policer, derives, generation, ttl, asks, at =
  unpack_at('<dddddddddddddd', args)
local now, police, derived, turns = instant(given), policer == 1, derives == 1, asks % 2 == 1
-- Whether others wait in order for slots that this caller would take out of order.
local yields, reach_now = asks >= 2, nil
if ttl < 0 then
  -- Slots far ahead would starve the replicas that hold leases.
  local leases = KEYS[#KEYS]
  local others = redis.call('ZCOUNT', leases, '(' .. int(now), int(now + LONGEST_LEASE))
  local own = tonumber(redis.call('ZSCORE', leases, ARGV[2]) or 0)
  if own > now and own <= now + LONGEST_LEASE then
    others = others - 1
  end
  yields = yields or others > 0
  if yields then
    ahead, reach_now = min(ahead, -ttl - 1), min(horizon, -ttl - 1)
  end
end
local record, changed = follow_record(now, known, run, horizon, farthest, seen, reach_now)
local last_slot = min(now + ahead, exact)
local begins, turn_units, turn_spacing, turn_lead, reach, waiting, own_limits, interval, goes_on, farthest_turn
local due = false
if turns then
  begins, turn_units, turn_spacing, turn_lead, reach, waiting, own_limits, interval, goes_on, farthest_turn, at =
    unpack_at('<dddddddddd', args, at)
  if ttl < 0 and not yields then
    turns, begins = false, -1
  end
  due = is_due(now, begins, turn_lead)
  if due then
    last_slot = min(last_slot, turn_end(now, begins, turn_units, turn_spacing, turn_lead))
  end
end
local count = number()

local outdated = generation ~= 0 and generation ~= record.generation
local stopped = record.pause == NEVER
local paused = stopped and 0 or max(record.penalty, record.pause)
-- A policer grants no slots that a server could have lost.
local from = police and now or max(now, record.lull)

-- A server that was restarted and kept its state has lost none: an idle caller keeps its burst.
local all = limits(count, record.fence)
if count > 2 then
  load_many(all)
end
-- The states, corrected for steps back and losses.
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
      s.last = max(s.last - by, 0)
      s.shift = record.shift
      l.corrected = true
    end
    kind.adopt(l, s)
    if is_lost then
      kind.lose(l, s)
      -- A state that outlived its record carries the shift of the lost record, which may be larger.
      s.shift = record.shift
    end
    if s.epoch ~= record.epoch then
      s.epoch = record.epoch
      l.corrected = true
    end
    if max(kind.whole(l, s), l.floor) + GRACE <= record.hw then
      s = nil
      l.corrected, l.stored = false, false
    end
  end
  if not s then
    s = { last = 0, shift = record.shift, epoch = record.epoch, tat = 0, rem = 0, n = 0, p = 0, burst = 0 }
    kind.fresh(l, s)
    if l.fence > 0 then
      kind.lose(l, s)
    end
  end
  -- After a reset under this epoch, counts remembered from before a loss are obsolete.
  if kind.recall and record.reset <= record.epoch and kind.recall(l, s, now, record.loss) then
    l.corrected = true
  end
  if paused > 0 then
    -- The pause is saved only with a commit: after a resume the state is then as it was before.
    l.unpaused = { s.last, s.tat, s.rem, s.tail }
    kind.pause(l, s, paused, now)
  end
  l.state = s
  local a, b = kind.mark(l, s)
  local place = 3 * i - 2
  before[place], before[place + 1], before[place + 2] = s.last, a, b
end

local unit = numbers(count)
-- The costs of a job by limit, and whether it costs nothing at all.
local costs, peek = {}, false

-- When a job fits, the first limit that requires that instant, and the limits that the job is charged to.
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

if yields and not due then
  for i = 1, count do
    costs[i] = unit[i]
  end
  -- The slots before the end of the queue belong to those whose turns are booked.
  if record.turns_end > choose(turns and own_limits or count) then
    last_slot = min(last_slot, now)
  end
end

local outcomes, outcomes_len = {}, 0
local function add_outcome(a, b)
  outcomes[outcomes_len + 1], outcomes[outcomes_len + 2], outcomes_len = a, b, outcomes_len + 2
end

-- The number of jobs that were decided on, for a policer of those allowed; the slot, the limit and the cost of the
-- job that ended the call; and how many of the waiting units have a slot, or wait for anything except the
-- downstream's pace.
local decided, refused, binding, cost, units = 0, -1, 0, 1, 0
-- The units of the jobs from the refused one on that wait for the end of a window with it.
local window_units = 0
-- In a call with lanes, the number of the downstream's own limits: the first ones.
local own_count
