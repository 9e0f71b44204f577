-- Release a failed job, as if it had not been delivered.
-- KEYS: job, lock
-- ARGV: token
if redis.pcall('GET', KEYS[2]) ~= ARGV[1] then return -2 end
redis.call('DEL', KEYS[2])
redis.pcall('HINCRBY', KEYS[1], 'matador-taken', -1)
return 0
