-- Decides on jobs that all obey the same limits. This part is composed between reserve.lua and finish.lua.
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

-- Whether a job of the costs `these` costs every limit at least as much as a job of the costs `others`.
local function costs_as_much(these, others)
  for i = 1, count do
    if these[i] < others[i] then
      return false
    end
  end
  return true
end

-- The costs, slot and limit of the last job that was passed over. `tail` is the state of the variables before the
-- first of the jobs passed over behind the last slot.
local passed_costs, passed_slot, passed_limit = {}, nil, 0
local tail

local function grant_slot()
  local own = floor(costs[1] / unit[1])
  local slot, limit, charge = passed_slot, passed_limit, nil
  -- A job that costs as much as one that was passed over waits at least as long.
  if not slot or not costs_as_much(costs, passed_costs) then
    slot, limit, charge = choose(count)
    if slot <= last_slot then
      commit(slot, charge, count)
      decided, units, tail = decided + 1, units + own, nil
      if not derived then
        add_outcome(slot, charge)
      end
      return
    end
    if stopped or combine ~= 0 or not all[limit + 1].kind.is_window or costs_as_much(unit, costs) then
      refused, binding, cost = slot, limit, max(own, 1)
      return
    end
    -- The job waits for the end of a window, whose rest is for jobs that cost less.
    for i = 1, count do
      passed_costs[i] = costs[i]
    end
    passed_slot, passed_limit = slot, limit
  end
  tail = tail or { decided, units, outcomes_len, slot, limit, max(own, 1) }
  add_outcome(slot, -1 - limit)
  decided, units = decided + 1, units + own
end

-- Decides on the first of `jobs` equal jobs. If it is refused, so are the others, and they get the same outcome, since
-- nothing was charged. Returns how many jobs were decided on.
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
  local first = outcomes_len
  add_outcome(earliest, charge)
  outcomes[outcomes_len + 1], outcomes_len = limit, outcomes_len + 1
  for i = 1, count do
    local l = all[i]
    if l.kind.standing then
      add_outcome(l.kind.standing(l, l.state, now))
    end
  end
  local size = outcomes_len - first
  for _ = 2, count_of do
    for place = outcomes_len + 1, outcomes_len + size do
      outcomes[place] = outcomes[place - size]
    end
    outcomes_len = outcomes_len + size
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
  window_units = units - tail[2]
  decided, units, outcomes_len, refused, binding, cost = unpack(tail)
end
