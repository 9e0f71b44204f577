-- Note that a scope stores in a queue, before it does; says how far the scope is sealed.
-- KEYS: the scope, its queues. ARGV: queue. Whoever seals looks at the queues after sealing, so
-- either the sender sees the seal, or the seal reaches the queue.
redis.call('SADD', KEYS[2], ARGV[1])
return tonumber(redis.call('GET', KEYS[1]) or '-1') or -1
