-- Reserves slots for jobs, or decides whether each fits now, for the GCRA family; one.lua or many.lua follows, or
-- mixed.lua, which reserves slots under windows too. They decide exactly as reserve.lua, tat.lua and windows.lua do.
-- Where a correction is due, a fence or a pause lies ahead, or other terms are in force, they answer nil and write
-- nothing, and the call is left to those scripts.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker
--         saw (0: none), the run that it is connected to, how far ahead a slot may lie, the latest slot
--         that is exact, 1 to police or else 0, the generation of the terms that the limits are from (0: any),
--         1 if it takes turns or else 0, how far ahead slots are granted to it and those like it,
--         0 (all) | 1 (any) | 2 (one of);
--         for one that takes turns, of the turn that it holds the begin (-1: none), units, spacing and lead, how far ahead it
--         needs turns to be booked, the units that wait, how many of the limits are the whole downstream's: the first
--         ones, how far apart slots of these lie at most in the long run, 1 if it asks for others of its jobs at the same turn, and how far ahead a turn may begin;
--         then of each limit N, P div N, P mod N, and a and b: a cost is due a*cost + b emission
--         intervals after TAT, so that the burst is 1 - a - b;
--         then runs of a cost for each limit and how many jobs have them
-- Answer nil, or doubles as reserve.lua's: for an asker that takes turns all of them, else without those
--         that say from when on, replicas, next and of turns

-- This script is written for speed: closures, tables and answers of several parts cost as much as the decision.

local STEP = 100000 -- as in lib.lua, like those that follow
local TICK, GRACE = 25000, 60000000
-- one.lua sets a new TTL of a state only when its TAT enters another span. Within a span the TAT rises by less than
-- SPAN, so the TTL of a state, which is KEPT = GRACE + SPAN after its TAT when it is set, always leaves GRACE.
local SPAN, KEPT = 4000000, 64000000
local LEVEL_AT = '2' -- the offset of last in a state; shift, epoch, TAT and remainder follow
local EXACT, NEVER = 9007199254740992, 9007199254740991 -- 2^53, and the latest instant
local KIND, SIZE = 12660, 66 -- a state is "t1", and eight doubles
local RECORD_BYTES = 184
-- Bytes of the record, counted from 1: the stamp is these, and the version of the tombstones.
local STAMP_AT, STAMP_TO, TOMBSTONES_AT, TOMBSTONES_TO = 49, 96, 161, 168
-- Offsets in the record, as texts: a number would be formatted in every call.
local HW_AT, TURNS_AT, VACANCY_AT = '32', '136', '168'
local TURNS_FIRST = 137 -- the first byte at TURNS_AT, counted from 1
local COMBINE_AT, LIMITS_AT = 73, 81 -- bytes of the arguments, counted from 1
local call, pack, take = redis.call, struct.pack, struct.unpack

local args = ARGV[1]
local now, known, run, ahead, exact, police, terms, turns, horizon = take('<ddddddddd', args)
local at = LIMITS_AT
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local last_slot = now + ahead
if last_slot > exact then
  last_slot = exact
end

local values = call('MGET', unpack(KEYS))
local record = values[1]
if not record or #record < RECORD_BYTES then
  return false
end
local version, gate, ran, shift, hw, far, generation, epoch = take('<dddddddd', record)
if version ~= 1 or ran ~= run or (known > 0 and known ~= epoch) or hw - now > STEP or (terms > 0 and terms ~= generation) then
  return false
end
local ticked
local begins, turn_units, turn_spacing, turn_lead, reach, waiting, own_limits, interval, goes_on, farthest_turn
local due = false
if turns == 1 then
  begins, turn_units, turn_spacing, turn_lead, reach, waiting, own_limits, interval, goes_on, farthest_turn, at =
    take('<dddddddddd', args, at)
  due = is_due(now, begins, turn_lead)
  if due then
    last_slot = math.min(last_slot, turn_end(now, begins, turn_units, turn_spacing, turn_lead))
  end
end

-- The record stores the highest instant seen, and the farthest instant up to which slots may be granted.
if now - hw >= TICK or now + horizon > far then
  hw = now - hw >= TICK and now or hw
  if now + TICK + horizon > far then
    far = now + TICK + horizon
  end
  ticked = pack('<dd', hw, far)
end
