-- Let nothing more be stored in parts of a scope in one queue, and forget their ids.
-- ARGV: scope, batch.
local base, scope, batch = KEYS[1], ARGV[1], tonumber(ARGV[2])
local sealed = tonumber(redis.call('HGET', base .. ':sealed', scope) or '-1') or -1
redis.call('HSET', base .. ':sealed', scope, math.max(sealed, batch))
local parts = base .. ':once:' .. scope
for _, part in ipairs(redis.call('ZRANGEBYSCORE', parts, '-inf', batch)) do
  redis.call('UNLINK', parts .. ':' .. part)
end
redis.call('ZREMRANGEBYSCORE', parts, '-inf', batch)
return 1
