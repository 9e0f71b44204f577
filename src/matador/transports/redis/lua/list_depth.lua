-- How many messages are ready, delayed, held.
local due = redis.call('ZCOUNT', base .. ':delayed', '-inf', now())
local held = 0
for _, consumer in ipairs(redis.call('ZRANGE', base .. ':consumers', 0, -1)) do
  held = held + redis.call('LLEN', base .. ':held:' .. consumer)
end
local ready = redis.call('LLEN', base .. ':ready') + redis.call('LLEN', base .. ':paused')
return { ready + due, redis.call('ZCARD', base .. ':delayed') - due, held }
