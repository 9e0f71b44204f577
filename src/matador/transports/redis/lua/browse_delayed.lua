-- Delayed messages in order of their time. ARGV: how many to skip, count. Returns {due, name, fields}
-- for each.
local first = tonumber(ARGV[1])
local rows = redis.call('ZRANGE', base .. ':delayed', first, first + tonumber(ARGV[2]) - 1, 'WITHSCORES')
local found = {}
for place = 1, #rows, 2 do
  local _, fields, name = delayed_of(rows[place])
  found[#found + 1] = { moment(rows[place + 1]), name, fields }
end
return found
