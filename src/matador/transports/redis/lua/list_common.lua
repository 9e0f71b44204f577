-- What the scripts for lists share, put in front of each.
--
-- A queue is a hash with its settings; all its other keys have the name of that hash in front, and
-- so its hash tag. Messages wait in the list ':ready'; a consumer moves them to a list of its own,
-- ':held:NAME', and beats (':consumers', until when it counts as alive). What one held that beats
-- no more is put back by whoever notices. A message is 'place:deliveries:content'; its place is
-- never used twice. One of another form is content, and nothing more.
--
-- A script is atomic but is not rolled back. A full server refuses the first write of a script and no
-- later one; other errors (a key of another type) come at any command. So what stores comes before
-- what removes, each message is tried by itself, and what comes after it is not allowed to fail.

local CHUNK = 500
local SEEN_OFF = 60000 -- milliseconds; a read that was waiting on the server is over by then
local FAR = 100000000000000 -- milliseconds; as far as any date goes
local MOST_COUNTED = 1000000

-- What went wrong, as text.
local function said(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Place, deliveries and content of a message; no place if it is not one of ours.
local function parts_of(message)
  local place, count, content = string.match(message, '^(%d+):(%d+):(.*)$')
  if place and #place <= 16 and #count <= 9 then
    return place, tonumber(count), content
  end
  return nil, 0, message
end

-- By what a message is known; contents.py says the same.
local function name_of(message)
  local place = parts_of(message)
  return place or '9' .. string.format('%015.0f', tonumber(string.sub(redis.sha1hex(message), 1, 12), 16))
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function beat(base, consumer, lease)
  -- A full server refuses the first write that needs memory; this one needs none, and opens the way:
  -- a worker must be able to say that it lives.
  redis.call('ZREM', base .. ':consumers', '')
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
    redis.pcall('XADD', base .. ':bell', 'MAXLEN', '1', '*', 'r', '1')
  end
end

local function trim(base)
  local length = tonumber(redis.call('HGET', base, 'max_length'))
  if length and length > 0 then
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
    local place, count, content = parts_of(message)
    count = string.format('%d', math.min(count + 1, MOST_COUNTED))
    redis.call('LPUSH', base .. ':ready', (place or redis.call('HINCRBY', base, 'seq', 1)) .. ':' .. count .. ':' .. content)
    redis.call('RPOP', held)
  end
  return false
end
