-- Note that the consumer is alive, move delayed messages that are due, take back what dead consumers
-- hold. ARGV: consumer, lease. Returns the milliseconds until the next is due (-1: none is delayed), 0,
-- what went wrong if something did, and 0: the end of a pause wakes who waits for a list.
local consumer, lease = ARGV[1], tonumber(ARGV[2])
beat(base, consumer, lease)
local time, problem = now(), ''

local function move(message)
  redis.call('RPUSH', place_of(base), message)
end

-- An error of one does not keep the others from being done.
local moved, wait = pcall(move_due, base, CHUNK, move)
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
return { wait, 0, problem, 0 }
