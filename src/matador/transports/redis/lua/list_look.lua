-- All messages, whoever has them. ARGV: how many at most. Gives {ready, delayed with when they are
-- due, held}, or how many there are if that is too many; nil: no such queue.
local base, most = KEYS[1], tonumber(ARGV[1])
if redis.call('EXISTS', base) == 0 then
  return nil
end
local number = redis.call('LLEN', base .. ':ready') + redis.call('ZCARD', base .. ':delayed')
if number > most then
  return number
end
local held = {}
for _, consumer in ipairs(redis.call('ZRANGE', base .. ':consumers', 0, -1)) do
  for _, message in ipairs(redis.call('LRANGE', base .. ':held:' .. consumer, 0, -1)) do
    held[#held + 1] = message
  end
end
local ready = redis.call('LRANGE', base .. ':ready', 0, -1)
return { ready, redis.call('ZRANGE', base .. ':delayed', 0, -1, 'WITHSCORES'), held }
