-- Hand certain messages over. ARGV: consumer, lease, then their names. Gives them in that order,
-- but for those in other hands; nil: no such queue.
local base, consumer = KEYS[1], ARGV[1]
if redis.call('EXISTS', base) == 0 then
  return nil
end
beat(base, consumer, tonumber(ARGV[2]))
local wanted, found = {}, {}
for place = 3, #ARGV do
  wanted[ARGV[place]] = place
end
local held = base .. ':held:' .. consumer
for _, message in ipairs(redis.call('LRANGE', base .. ':ready', 0, -1)) do
  local place = wanted[name_of(message)]
  if place then
    redis.call('RPUSH', held, message)
    redis.call('LREM', base .. ':ready', 1, message)
    found[#found + 1] = { place, message }
  end
end
for _, message in ipairs(redis.call('ZRANGE', base .. ':delayed', 0, -1)) do
  local place = wanted[name_of(message)]
  if place then
    redis.call('RPUSH', held, message)
    redis.call('ZREM', base .. ':delayed', message)
    found[#found + 1] = { place, message }
  end
end
table.sort(found, function(one, other)
  return one[1] < other[1]
end)
local messages = {}
for place, pair in ipairs(found) do
  messages[place] = pair[2]
end
return messages
