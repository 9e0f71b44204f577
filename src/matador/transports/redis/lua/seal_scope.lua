-- Seal a scope up to a part. KEYS: the scope, its queues. ARGV: batch. Gives the queues.
local sealed = tonumber(redis.call('GET', KEYS[1]) or '-1') or -1
if tonumber(ARGV[1]) > sealed then
  redis.call('SET', KEYS[1], ARGV[1])
end
return redis.call('SMEMBERS', KEYS[2])
