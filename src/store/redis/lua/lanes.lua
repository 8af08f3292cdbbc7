-- Decides on jobs of lanes, which obey limits of two levels. This part is composed between reserve.lua and finish.lua.
-- src/limit/lanes.rs takes the same steps.
--
-- ARGV  1 doubles, further on: how many of the limits are the downstream's own: the first ones; how far ahead of now a
--         slot may lie that the limits of a lane set; the most slots; how many lanes, of each how many limits it has, then
--         of each their indices among all; how many jobs, of each its lane (0: none), then of each its cost

local SPARE = 1024 -- as in src/limit/lanes.rs

own_count = number()
local soon = min(max(now + number(), from), last_slot)
local slots_left = number()
local lanes, sizes, uses = {}, numbers(number()), {}
for i = 1, #sizes do
  local lane = { places = numbers(sizes[i]), jobs = {}, head = 1, is_shared = false }
  for _, place in ipairs(lane.places) do
    local other = uses[place]
    if other then
      other.is_shared, lane.is_shared = true, true
    end
    uses[place] = lane
  end
  lanes[i] = lane
end
local jobs = number()
local lane_of, cost_of = numbers(jobs), numbers(jobs)
for job = 1, jobs do
  lane_of[job] = lanes[lane_of[job]] or false
end

-- When the lane of a job is ready for it, and the first of its limits that requires that instant.
local function lane_due(job)
  local lane, due, binding_place = lane_of[job], from, 0
  if lane then
    local places = lane.places
    for place = 1, #places do
      local l = all[places[place]]
      local slot = l.kind.earliest(l, l.state, from, cost_of[job])
      if slot > due then
        due, binding_place = slot, place - 1
      end
    end
  end
  return due, binding_place
end

-- When the downstream's own limits allow a job of this cost, and the first of them that requires that instant.
local function own_due(units_of)
  local slot, limit = nil, 0
  for i = 1, own_count do
    local l = all[i]
    local due = l.kind.earliest(l, l.state, from, units_of)
    if not slot or due > slot then
      slot, limit = due, i - 1
    end
  end
  return slot, limit
end

-- Heaps of jobs: the job with the earliest `due` is on top, and of several such jobs the first in the call.
local function push(heap, due, job)
  local dues, of, place = heap.dues, heap.of, heap.size + 1
  heap.size = place
  while place > 1 do
    local above = floor(place / 2)
    if dues[above] < due or (dues[above] == due and of[above] < job) then
      break
    end
    dues[place], of[place], place = dues[above], of[above], above
  end
  dues[place], of[place] = due, job
end

local function pop(heap)
  local dues, of, size = heap.dues, heap.of, heap.size
  local top_due, top, due, job = dues[1], of[1], dues[size], of[size]
  size = size - 1
  heap.size = size
  local place, below = 1, 2
  while below <= size do
    local right = below + 1
    if right <= size and (dues[right] < dues[below] or (dues[right] == dues[below] and of[right] < of[below])) then
      below = right
    end
    if due < dues[below] or (due == dues[below] and job < of[below]) then
      break
    end
    dues[place], of[place], place = dues[below], of[below], below
    below = 2 * place
  end
  dues[place], of[place] = due, job
  return top_due, top
end

-- The first job of each lane that has no slot yet: those whose lanes are ready, by their order in the call; those
-- whose lanes are not ready, by the instant at which they will be; and those that wait for the end of a window of the
-- downstream.
local ready, asleep = { dues = {}, of = {}, size = 0 }, { dues = {}, of = {}, size = 0 }
local passed = {}
local slots, codes = {}, {}

local base, base_limit = own_due(1)
local function wait(job)
  local due = lane_due(job)
  if due <= base then
    push(ready, 0, job)
  else
    push(asleep, due, job)
  end
end

for job = 1, jobs do
  local lane = lane_of[job]
  if lane then
    lane.jobs[#lane.jobs + 1] = job
  end
  if not lane or #lane.jobs == 1 then
    wait(job)
  end
end

local function grant_slot(job, slot)
  local lane, units_of = lane_of[job], cost_of[job]
  slots[job], codes[job], slots_left = slot, 0, slots_left - 1
  if units_of > 0 then
    for i = 1, own_count do
      local l = all[i]
      l.kind.commit(l, l.state, slot, units_of)
      l.taken = true
    end
  end
  units = units + units_of
  if not lane then
    return
  end
  if units_of > 0 then
    local places = lane.places
    for place = 1, #places do
      local l = all[places[place]]
      l.kind.commit(l, l.state, slot, units_of)
      l.taken = true
    end
  end
  lane.head = lane.head + 1
  local next_job = lane.jobs[lane.head]
  if next_job then
    wait(next_job)
  end
end

-- Where many lanes share a limit, all others must be examined again after each slot that one of them takes. The
-- number of steps is therefore bounded.
local goes = not outdated and not stopped
local steps = goes and 2 * jobs + SPARE or 0
while steps > 0 and slots_left > 0 do
  steps = steps - 1
  base, base_limit = own_due(1)
  while asleep.size > 0 and asleep.dues[1] <= base do
    local _, job = pop(asleep)
    push(ready, 0, job)
  end
  local known, job, _ = base, nil, nil
  local is_ready = ready.size > 0
  if is_ready then
    _, job = pop(ready)
  elseif asleep.size > 0 then
    known, job = pop(asleep)
  else
    break
  end
  -- The known instant of a lane holds unless other lanes charge its limits; and a lane that is ready does not determine
  -- the slot.
  local due, lane = is_ready and from or known, lane_of[job]
  if cost_of[job] == 0 or (lane and lane.is_shared) then
    due = lane_due(job)
  end
  if due > known then
    push(asleep, due, job) -- another lane has charged a limit that they share
  elseif due > base and due > soon then
    push(asleep, due, job)
    break
  else
    local slot, limit = base, base_limit
    if cost_of[job] ~= 1 then
      slot, limit = own_due(cost_of[job])
    end
    if max(slot, due) <= last_slot then
      grant_slot(job, max(slot, due))
    elseif cost_of[job] > 1 and all[limit + 1].kind.is_window then
      passed[#passed + 1] = job
    else
      push(ready, 0, job)
      refused, binding, cost = slot, limit, max(cost_of[job], 1)
      break
    end
  end
end

-- The reason why each job without a slot has none. Jobs behind the first one of a lane wait at least as long as that
-- one.
base = own_due(1)
local function refuse(job)
  local due, place = lane_due(job)
  local slot, limit = own_due(cost_of[job])
  local waits = turns and limit < own_limits and not all[limit + 1].kind.is_window
  if due > max(base, slot) then
    slot, limit, waits = due, own_count + place, false
  end
  local lane = lane_of[job]
  local first, last = 1, 1
  if lane then
    first, last = lane.head, #lane.jobs
  end
  for i = first, last do
    local one = lane and lane.jobs[i] or job
    slots[one], codes[one] = slot, -1 - limit
    if not waits then
      units = units + cost_of[one]
    end
  end
end

if goes then
  for i = 1, asleep.size do
    refuse(asleep.of[i])
  end
  for i = 1, ready.size do
    refuse(ready.of[i])
  end
  for i = 1, #passed do
    refuse(passed[i])
  end
  for job = 1, jobs do
    add_outcome(slots[job], codes[job])
  end
  decided = jobs
elseif stopped and not outdated and jobs > 0 then
  refused = NEVER
end
