-- How many messages are ready, delayed, held.
local due = redis.call('ZCOUNT', base .. ':delayed', '-inf', now())
local held = 0
for _, noted in ipairs({ ':consumers', ':gone' }) do
  for _, consumer in ipairs(redis.call('ZRANGE', base .. noted, 0, -1)) do
    held = held + redis.call('LLEN', base .. ':held:' .. consumer)
  end
end
local ready = redis.call('LLEN', base .. ':ready') + redis.call('LLEN', base .. ':paused')
return { ready + due, redis.call('ZCARD', base .. ':delayed') - due, held }
