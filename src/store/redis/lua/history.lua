-- Keeps the last changes of a downstream for people, and returns them. src/store/memory/fleet.rs has the same rules.
--
-- KEYS  1 the history: lines, each with its instant in ms, a colon and the text
-- ARGV  1 doubles: the instant of a test's clock (-1: the store's clock); the most lines; how long a line is kept, in ms
--       2 how long the history is kept after a change, in ms
--       3 a text to add, on one line; empty to read
-- Answer the lines, the oldest first

local now, most, kept = floor(instant(number()) / 1000), number(), number()

local lines = {}
for line in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\n]+') do
  local at = tonumber(string.match(line, '^(%d+):')) -- it was not written by paced if there is none
  if at and at > now - kept and #lines < most then
    lines[#lines + 1] = line
  end
end
if ARGV[3] ~= '' then
  if #lines >= most then
    table.remove(lines, 1)
  end
  lines[#lines + 1] = int(now) .. ':' .. ARGV[3]
  redis.call('SET', KEYS[1], table.concat(lines, '\n'), 'PX', ARGV[2])
end
return lines
