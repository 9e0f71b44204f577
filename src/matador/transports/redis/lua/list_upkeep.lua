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
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', base .. ':consumers', '-inf', time, 'LIMIT', 0, MOST_GONE)) do
  redis.call('ZADD', base .. ':gone', string.format('%.0f', time), silent)
  redis.call('ZREM', base .. ':consumers', silent)
end
-- A read of a dead consumer may still wait on the server, and this script may be what ends its wait. So
-- the time counts from when somebody noticed: after a pause of the server nobody has looked for long.
local gone = redis.call('ZRANGE', base .. ':gone', 0, MOST_GONE - 1, 'WITHSCORES')
for place = 1, #gone, 2 do
  local taken, all = true, true
  local alive = redis.call('ZSCORE', base .. ':consumers', gone[place]) -- an older version has noted it
  if not alive then
    taken, all = pcall(take_back, base, gone[place])
  end
  if not taken then
    problem = said(all)
  elseif alive or (all and tonumber(gone[place + 1]) < time - SEEN_OFF) then
    redis.call('ZREM', base .. ':gone', gone[place])
  end
end
return { wait, 0, problem, 0 }
