-- Delayed messages in order of their time. ARGV: how many to skip, count. Gives {due, place, fields};
-- nil: no such queue.
local base = KEYS[1]
if not settings(base) then
  return nil
end
local first = tonumber(ARGV[1])
local rows = redis.call('ZRANGE', base .. ':delayed', first, first + tonumber(ARGV[2]) - 1, 'WITHSCORES')
local found = {}
for place = 1, #rows, 2 do
  local member = rows[place]
  local content = cmsgpack.unpack(string.sub(member, 17))
  found[#found + 1] = { rows[place + 1], string.sub(member, 1, 16), content[2] }
end
return found
