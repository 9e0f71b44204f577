-- Store the result of a step. KEYS: the checkpoint. ARGV: step, value, milliseconds to keep it.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
