-- Reserves slots for jobs, or decides whether each fits now, for the GCRA family: one.lua or many.lua
-- goes on from here. They decide all as reserve.lua and tat.lua do, or answer nil, write nothing and
-- leave the call to those: where something is to be corrected, a fence or a pause lies ahead, or other
-- terms are in force.
--
-- KEYS  1 record, 2.. the state of each limit
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock), the last epoch that the worker
--         saw (0: none), the run that it is connected to, how far ahead a slot may lie, the latest slot
--         that is exact, 0 (all) | 1 (any) | 2 (one of), 1 to police or else 0, the generation of the
--         terms that the limits are from (0: nobody's business);
--         then of each limit N, P div N, P mod N, and a and b: a cost is due a*cost + b emission
--         intervals after TAT, so that the burst is 1 - a - b;
--         then runs of a cost for each limit and how many jobs have them
-- Answer nil, or doubles: now, epoch, granted, first slot refused or -1, its limit, penalty, pause,
--         version, generation, reset; then last, tat, rem of each limit before
--
-- Written for speed: closures, tables and an answer of several parts cost as much as the decision.

local STEP, TICK, GRACE = 100000, 25000, 60000000 -- as in lib.lua
local EXACT, NEVER = 9007199254740992, 9007199254740991 -- 2^53, and the latest instant
local KIND, SIZE = 116, 65 -- a state is "t", and eight doubles
local RECORD_BYTES = 80
local call, pack, take = redis.call, struct.pack, struct.unpack

local args = ARGV[1]
local now, known, run, ahead, exact, combine, police, terms, at = take('<dddddddd', args)
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local last_slot = now + ahead
if last_slot > exact then
  last_slot = exact
end

local told = call('MGET', unpack(KEYS))
if not told[1] or #told[1] ~= RECORD_BYTES then
  return false
end
local epoch, ran, reset, fence, hw, shift, penalty, pause, version, generation = take('<dddddddddd', told[1])
if ran ~= run or known > epoch or hw - now > STEP or (terms > 0 and terms ~= generation) then
  return false
end
-- Nothing goes before it.
local gate = fence
if penalty > gate then
  gate = penalty
end
if pause > gate then
  gate = pause
end
local ticked = now - hw >= TICK
if ticked then
  hw = now
end
