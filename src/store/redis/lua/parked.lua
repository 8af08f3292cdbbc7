-- Counts the parked jobs of a downstream.
--
-- KEYS  1 the count
-- ARGV  1 doubles: how many are added
--       2 how long the count is kept after a change, in ms
-- Answer the count

local jobs = number()

local was = tonumber(redis.call('GET', KEYS[1]) or 0) or 0
if not (was >= 0 and was <= NEVER) then
  was = 0 -- it was not written by paced
end
local count = min(max(floor(was) + jobs, 0), NEVER)
if jobs ~= 0 then
  redis.call('SET', KEYS[1], int(count), 'PX', ARGV[2])
end
return count
