-- Let in what is due, forget what is past its time. ARGV: lease. Gives: milliseconds until the next
-- is due (-1: none is delayed), whether something waits to be claimed. nil: no such queue.
local base = KEYS[1]
local queue = settings(base)
if not queue then
  return nil
end
tidy(base, queue)
local key = base .. ':delayed'
local time = now()
local due = redis.call('ZRANGEBYSCORE', key, '-inf', time, 'LIMIT', 0, 200)
for _, member in ipairs(due) do
  local found = cmsgpack.unpack(string.sub(member, 17))
  local level = math.min(found[1], queue.levels - 1)
  redis.call('XADD', base .. ':' .. level, next_id(base, queue), unpack(found[2]))
  redis.call('ZREM', key, member)
end
local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
local wait = -1
if first then
  wait = math.max(0, tonumber(first) - time)
end
for _, lane in ipairs(lanes(queue)) do
  if #redis.call('XPENDING', base .. ':' .. lane, GROUP, 'IDLE', ARGV[1], '-', '+', 1) > 0 then
    return { wait, 1 }
  end
end
return { wait, 0 }
