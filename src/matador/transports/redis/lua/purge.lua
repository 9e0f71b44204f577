-- Delete messages that nobody holds, a bounded number. Returns how many.
local number = redis.call('ZREMRANGEBYRANK', base .. ':delayed', 0, CHUNK - 1)
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  local ids = {}
  for _, row in ipairs(grouped(key, 'XPENDING', key, GROUP, '-', '+', CHUNK, NOBODY)) do
    ids[#ids + 1] = row[1]
  end
  local last = delivered_up_to(key)
  for _, entry in ipairs(redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', CHUNK)) do
    ids[#ids + 1] = entry[1]
  end
  remove(base, lane, ids)
  number = number + #ids
end
return number
