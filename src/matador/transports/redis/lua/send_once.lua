-- Store messages whose id is not noted yet, and note it. ARGV: scope, batch, then as for send_full;
-- the first field's value is the id. Says whether the queue is there; else nothing is stored.
local base, scope, batch = KEYS[1], ARGV[1], tonumber(ARGV[2])
local queue = settings(base)
if not queue then
  return 0
end
if batch <= tonumber(redis.call('HGET', base .. ':sealed', scope) or '-1') then
  return 1
end
local parts = base .. ':once:' .. scope
local notes = parts .. ':' .. ARGV[2]
redis.call('ZADD', parts, batch, ARGV[2])
local place = 3
while place <= #ARGV do
  local count = tonumber(ARGV[place + 2])
  local fields = { unpack(ARGV, place + 3, place + 2 + count) }
  if redis.call('SISMEMBER', notes, fields[2]) == 0 then
    put(base, queue, tonumber(ARGV[place]), ARGV[place + 1], fields)
    redis.call('SADD', notes, fields[2])
  end
  place = place + 3 + count
end
if queue.max_length or queue.ttl then
  trim(base, queue)
end
return 1
