-- Note that the consumer is alive, move delayed messages that are due, take back what dead consumers
-- hold. ARGV: consumer, lease. Returns the milliseconds until the next is due (-1: none is delayed), 0,
-- and what went wrong if something did; nil: no such queue.
local base, consumer, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('EXISTS', base) == 0 then
  return nil
end
beat(base, consumer, lease)
local time, problem = now(), ''

local function move_due()
  local delayed = base .. ':delayed'
  for _, message in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', time, 'LIMIT', 0, CHUNK)) do
    redis.call('RPUSH', base .. ':ready', message)
    redis.call('ZREM', delayed, message)
  end
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, math.min(tonumber(first), FAR) - time) or -1
end

-- An error of one does not keep the others from being done.
local moved, wait = pcall(move_due)
if not moved then
  wait, problem = -1, said(wait)
end
local gone = redis.call('ZRANGEBYSCORE', base .. ':consumers', '-inf', time, 'WITHSCORES', 'LIMIT', 0, 100)
for place = 1, #gone, 2 do
  local taken, all = pcall(take_back, base, gone[place])
  if not taken then
    problem = said(all)
  elseif all and tonumber(gone[place + 1]) < time - SEEN_OFF then
    redis.call('ZREM', base .. ':consumers', gone[place])
  end
end
return { wait, 0, problem }
