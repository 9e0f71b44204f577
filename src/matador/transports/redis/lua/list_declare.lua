-- Create a queue: this key is all that says that it exists.
return redis.call('HSET', KEYS[1], 'kind', 'list')
