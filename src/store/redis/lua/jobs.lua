-- Decides on jobs that all obey the same limits. It is put between reserve.lua and finish.lua.
--
-- ARGV  1 doubles, further on: how many costs a job has (1: the same for each limit), then runs of costs and how many
--         jobs have them

local width = number()
local function read_costs()
  local sum, same = 0, width == 1 and number()
  for i = 1, count do
    costs[i] = same or number()
    sum = sum + costs[i]
  end
  peek = sum == 0
end

-- Whether a job of these costs costs every limit as much as one of the others does, or more.
local function is_as_dear(these, others)
  for i = 1, count do
    if these[i] < others[i] then
      return false
    end
  end
  return true
end

-- The job that was passed over last: its costs, its slot and limit. And how things stood before the first of those
-- behind whom no job got a slot.
local dear, dear_slot, dear_limit = {}, nil, 0
local tail

local function grant_slot()
  local own = floor(costs[1] / unit[1])
  local slot, limit, charge = dear_slot, dear_limit, nil
  -- A job that costs as much as one that was passed over waits at least as long.
  if not slot or not is_as_dear(costs, dear) then
    slot, limit, charge = choose(count)
    if slot <= last_slot then
      commit(slot, charge, count)
      decided, units, tail = decided + 1, units + own, nil
      if not derived then
        tell(slot, charge)
      end
      return
    end
    if stopped or combine ~= 0 or not all[limit + 1].kind.is_window or is_as_dear(unit, costs) then
      refused, binding, cost = slot, limit, max(own, 1)
      return
    end
    -- It waits for the end of a window: what is left of it is for jobs that cost less.
    for i = 1, count do
      dear[i] = costs[i]
    end
    dear_slot, dear_limit = slot, limit
  end
  tail = tail or { decided, units, told_of, slot, limit, max(own, 1) }
  tell(slot, -1 - limit)
  decided, units = decided + 1, units + own
end

-- Decides on the first of so many jobs that are alike. Where it is refused so are the others, and what is
-- told of it holds for them: nothing was taken. Answers for how many it decided.
local function decide(jobs)
  local earliest, limit, charge = choose(count)
  local count_of = 1
  if earliest > now then
    charge, count_of = 0, jobs
  else
    commit(now, charge, count)
    decided = decided + 1
  end
  if derived then
    return count_of
  end
  local first = told_of
  tell(earliest, charge)
  outcomes[told_of + 1], told_of = limit, told_of + 1
  for i = 1, count do
    local l = all[i]
    if l.kind.standing then
      tell(l.kind.standing(l, l.state, now))
    end
  end
  local size = told_of - first
  for _ = 2, count_of do
    for place = told_of + 1, told_of + size do
      outcomes[place] = outcomes[place - size]
    end
    told_of = told_of + size
  end
  return count_of
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
if refused < 0 and tail then
  dear_units = units - tail[2]
  decided, units, told_of, refused, binding, cost = unpack(tail)
end
