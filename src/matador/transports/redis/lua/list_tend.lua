-- Beat, let in what is due, take back what is in hands that do not beat. ARGV: consumer, lease.
-- Gives the milliseconds until the next is due (-1: none is delayed); nil: no such queue.
local base, consumer, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('EXISTS', base) == 0 then
  return nil
end
beat(base, consumer, lease)
local time = now()
local delayed = base .. ':delayed'
for _, message in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', time, 'LIMIT', 0, CHUNK)) do
  redis.call('RPUSH', base .. ':ready', message)
  redis.call('ZREM', delayed, message)
end
local gone = redis.call('ZRANGEBYSCORE', base .. ':consumers', '-inf', time, 'WITHSCORES', 'LIMIT', 0, 100)
for place = 1, #gone, 2 do
  if take_back(base, gone[place]) and tonumber(gone[place + 1]) < time - SEEN_OFF then
    redis.call('ZREM', base .. ':consumers', gone[place])
  end
end
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
if first then
  return math.max(0, tonumber(first) - time)
end
return -1
