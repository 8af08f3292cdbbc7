-- Counts the parked jobs of a downstream by the hour until which they wait and their kind. src/store/parked.rs has the
-- same rules.
--
-- KEYS  1 doubles: how many numbers each group has; the groups, each with its hour, its kind, its jobs. A later version may add
--         numbers to each group behind these.
-- ARGV  1 doubles: the first hour that counts; the most groups; how many changes there are; three for each change
--       2 how long the groups are kept after a change, in ms
-- Answer the groups: doubles, three for each

local from, most, count = number(), number(), number()

local WIDTH = 3
local groups, known = {}, {} -- in the order in which they came; by hour and kind
local function add(hour, kind, jobs)
  local name = int(hour) .. ':' .. int(kind)
  local group = known[name]
  if group then
    group[3] = min(max(group[3] + jobs, 0), NEVER)
  elseif jobs > 0 and hour >= from and #groups < most then
    group = { hour, kind, min(jobs, NEVER) }
    known[name], groups[#groups + 1] = group, group
  end
end

local packed = redis.call('GET', KEYS[1]) or ''
local width = #packed >= 8 and unpack_at('<d', packed) or 0
if width >= WIDTH and width <= 64 and width == floor(width) then -- or it was not written by paced
  for first = 9, #packed - 8 * width + 1, 8 * width do
    local hour, kind, jobs = unpack_at('<ddd', packed, first)
    if jobs >= 1 and jobs <= NEVER and hour <= NEVER and kind >= 0 and kind <= 255 then
      add(floor(hour), floor(kind), floor(jobs))
    end
  end
end
for _ = 1, count do
  local change = numbers(3)
  add(change[1], change[2], change[3])
end

local values = {}
for _, group in ipairs(groups) do
  if group[3] > 0 then
    for i = 1, 3 do
      values[#values + 1] = group[i]
    end
  end
end
local left = pack_all(values, #values)
if count > 0 then
  redis.call('SET', KEYS[1], pack('<d', WIDTH) .. left, 'PX', ARGV[2])
end
return left
