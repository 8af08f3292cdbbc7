-- The cool-down of a downstream: a part of record.lua and restart.lua. src/store/record/cool_down.rs has the same rules.
--
-- Its key (string, TTL) has `level:from:ends:shift:holder`: how often a probe was refused, from when on a probe may go,
-- the end of the holder's lease (0: no holder), the record's shift when it was written, and the replica that probes
-- (empty: none).

local LONGEST_WAIT = 3600000000
local LONGEST_PROBE = 600000000
local HIGHEST_LEVEL = 4294967295
local LAST_OF_COOL_DOWN = '189' -- its last byte: a level of 10 digits, three numbers of 16, 4 colons, 128 bytes

-- The cool-down at `key` as it counts now, on the clock of the record; nil if there is none, or once it has ended by
-- itself. What paced has not written is ignored. No instant lies further ahead than any call sets it, also after
-- steps of the clock.
local function load_cool_down(key, r, now)
  local text = redis.call('GETRANGE', key, '0', LAST_OF_COOL_DOWN)
  local level, from, ends, shift, holder = text:match('^(%d+):(%d+):(%d+):(%d+):(.*)$')
  if not level then
    return nil
  end
  local back = max(r.shift - tonumber(shift), 0)
  from = min(max(tonumber(from) - back, 0), now + LONGEST_WAIT)
  ends = min(max(tonumber(ends) - back, 0), now + LONGEST_PROBE)
  if max(from, ends) + GRACE <= now then
    return nil
  end
  return { level = min(tonumber(level), HIGHEST_LEVEL), from = from, ends = ends, holder = holder }
end

-- Saves a cool-down, with a TTL that lasts as long as it counts.
local function save_cool_down(key, c, r, now)
  local numbers = int(c.level) .. ':' .. int(c.from) .. ':' .. int(c.ends) .. ':' .. int(r.shift)
  local px = math.ceil((max(c.from, c.ends) - now + GRACE) / 1000)
  redis.call('SET', key, numbers .. ':' .. c.holder, 'PX', int(px))
end

-- A cool-down in an answer: its level, its two instants and its holder, or nil.
local function cool_down_answer(c)
  return c and { c.level, c.from, c.ends, c.holder } or false
end
