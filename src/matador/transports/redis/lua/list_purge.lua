-- Delete all messages that nobody holds. Returns how many; -1: no such queue.
local base = KEYS[1]
if redis.call('EXISTS', base) == 0 then
  return -1
end
local number = redis.call('LLEN', base .. ':ready') + redis.call('ZCARD', base .. ':delayed')
redis.call('UNLINK', base .. ':ready', base .. ':delayed')
return number
