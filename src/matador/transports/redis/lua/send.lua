-- Store messages that need nothing special. ARGV: id, body, id, body ... Says whether the queue is
-- there; else nothing is stored.
local base = KEYS[1]
local queue = settings(base)
if not queue then
  return 0
end
local key = base .. ':0'
for place = 1, #ARGV, 2 do
  redis.call('XADD', key, next_id(base, queue), 'i', ARGV[place], 'b', ARGV[place + 1])
end
if queue.max_length or queue.ttl then
  trim(base, queue)
end
return 1
