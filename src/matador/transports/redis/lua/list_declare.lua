-- Make a queue, or bring its settings up to date. ARGV: max_length (empty: no limit).
redis.call('HSET', KEYS[1], 'max_length', ARGV[1])
return 1
