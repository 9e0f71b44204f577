-- Delete all messages that nobody holds. Returns how many.
local number = redis.call('LLEN', base .. ':ready') + redis.call('LLEN', base .. ':paused')
number = number + redis.call('ZCARD', base .. ':delayed')
redis.call('UNLINK', base .. ':ready', base .. ':paused', base .. ':delayed')
return number
