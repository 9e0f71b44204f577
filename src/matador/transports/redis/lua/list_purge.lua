-- Delete all messages that nobody holds. Returns how many.
local number = redis.call('LLEN', base .. ':ready') + redis.call('ZCARD', base .. ':delayed')
redis.call('UNLINK', base .. ':ready', base .. ':delayed')
return number
