-- Writes the decisions and answers. This part is composed last.

if missing then
  return pack('<dd', missing, missing_to)
end

-- Corrections are written even when nothing is granted: a fence that is not written never ends.
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

-- The rest is information only: the next slot, and the distance to the one after it.
for i = 1, count do
  costs[i] = unit[i]
end
peek = false
local next_slot = refused
if own_count or (not derived and not police and refused < 0) then
  next_slot = choose(own_count or count)
end
local turn, units_next, spacing, lead = -1, 0, 0, 0
if turns then
  record.reach, record.reach_until = reached(now, reach, record.reach, record.reach_until)
  changed = true
  local is_used = false
  for i = 1, count do
    is_used = is_used or all[i].taken
  end
  local waits = refused < 0 or binding < own_limits -- for the whole downstream
  if not outdated and not stopped and (waits or begins >= 0) then
    local free, _, charge = choose(own_limits)
    local is_costly = waits and refused > free -- a unit would fit before the job that was refused does
    if is_costly and combine == 0 and all[binding + 1].kind.is_window then
      -- The job gets its slot when the window ends; that needs no turn.
      units, cost, is_costly = units + max(window_units, cost), 1, false
    end
    local left, apart = waits and waiting - units or 0, interval
    if yields then
      left = min(left, 1)
    end
    if is_costly then
      free = refused
    elseif left > 0 then
      commit(free, charge, own_limits)
      apart = choose(own_limits) - free
    end
    turn, units_next, spacing, lead, record.turns_end, record.vacant_from, record.vacant_to = next_turn(
      now, begins, turn_units, turn_spacing, turn_lead, is_used, goes_on == 1, left, cost, free, apart, interval, farthest_turn,
      record.reach, record.turns_end, record.vacant_from, record.vacant_to
    )
  end
  if turn >= 0 then
    ttl = max(ttl, ttl > 0 and min(2 * (turn - now), LONGEST_LEASE) or 0)
  end
end
if changed then
  save_record(record)
end

local replicas = 0
if ttl > 0 then
  local leases = KEYS[count + 2]
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', int(now))
  -- A lease that ends later than any lease can was granted before the clock stepped back.
  redis.call('ZREMRANGEBYSCORE', leases, '(' .. int(now + LONGEST_LEASE), '+inf')
  redis.call('ZADD', leases, int(now + ttl), ARGV[2])
  redis.call('PEXPIRE', leases, int((LONGEST_LEASE + GRACE) / 1000))
  replicas = redis.call('ZCARD', leases)
end
local decision = pack('<dddddd', from, replicas, decided, refused, binding, next_slot)
local booked = pack('<ddddd', turns and record.reach or 0, turn, units_next, spacing, lead)
return stamp(now, record) .. decision .. booked .. pack_all(before, 3 * count) .. pack_all(outcomes, outcomes_len)
