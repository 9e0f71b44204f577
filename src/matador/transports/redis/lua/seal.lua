-- Let nothing more be stored in the parts of a scope up to a batch. ARGV: batch, scope.
-- KEYS of the scope itself: the scope, its queues; returns the queues. KEYS of one queue: the queue,
-- where the ids of these parts are deleted.
local base, batch, scope = KEYS[1], tonumber(ARGV[1]), ARGV[2]
if KEYS[2] then
  if batch > (tonumber(redis.call('GET', base) or '-1') or -1) then
    redis.call('SET', base, ARGV[1])
  end
  return redis.call('SMEMBERS', KEYS[2])
end
local sealed = tonumber(redis.call('HGET', base .. ':sealed', scope) or '-1') or -1
redis.call('HSET', base .. ':sealed', scope, math.max(sealed, batch))
local parts = base .. ':once:' .. scope
for _, part in ipairs(redis.call('ZRANGEBYSCORE', parts, '-inf', batch)) do
  redis.call('UNLINK', parts .. ':' .. part)
end
redis.call('ZREMRANGEBYSCORE', parts, '-inf', batch)
return 1
