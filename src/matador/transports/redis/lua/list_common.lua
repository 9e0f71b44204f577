-- What the scripts for lists share, put in front of each.
--
-- A queue is a hash with its settings; all its other keys have the name of that hash in front, and
-- so its hash tag. Messages wait in the list ':ready'; a consumer moves them to a list of its own,
-- ':held:NAME', and beats (':consumers', until when it counts as alive). What one held that beats
-- no more is put back by whoever notices. A message is 'place:deliveries:content'; its place is
-- never used twice.
--
-- A script is atomic but is not rolled back: a full server ends it at the next write. So what
-- stores comes before what removes; at worst there is something twice.

local CHUNK = 500
local SEEN_OFF = 60000 -- milliseconds; a read that was waiting on the server is over by then

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function beat(base, consumer, lease)
  redis.call('ZADD', base .. ':consumers', string.format('%.0f', now() + lease), consumer)
end

local function put(base, delay, content)
  local message = redis.call('HINCRBY', base, 'seq', 1) .. ':0:' .. content
  if delay <= 0 then
    redis.call('RPUSH', base .. ':ready', message)
    return
  end
  local key = base .. ':delayed'
  local due = now() + delay
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', key, string.format('%.0f', due), message)
  if not first or due < tonumber(first) then
    redis.call('XADD', base .. ':bell', 'MAXLEN', '1', '*', 'r', '1')
  end
end

local function trim(base)
  local length = tonumber(redis.call('HGET', base, 'max_length'))
  if length then
    redis.call('LTRIM', base .. ':ready', -length, -1)
  end
end

-- Put what a consumer holds back in front, counted; says whether that was all.
local function take_back(base, consumer)
  local held = base .. ':held:' .. consumer
  for _ = 1, CHUNK do
    local message = redis.call('LINDEX', held, -1)
    if not message then
      return true
    end
    local place, count, content = string.match(message, '^(%d+):(%d+):(.*)$')
    redis.call('LPUSH', base .. ':ready', place .. ':' .. (count + 1) .. ':' .. content)
    redis.call('RPOP', held)
  end
  return false
end
