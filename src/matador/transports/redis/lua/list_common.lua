-- Shared by the scripts of lists.
--
-- A queue is a hash with its settings; all its other keys begin with the name of that hash, and so have
-- its hash tag. Messages wait in the list ':ready'; those of a paused queue, which has the field 'paused',
-- wait in ':paused', where nobody reads. A consumer moves them to a list of its own,
-- ':held:NAME', and renews the time until which it counts as alive (':consumers'). Whoever notices that
-- this time is over notes since when the consumer is gone (':gone') and puts its messages back. An element is 'number:deliveries:content', with a number
-- that is never used twice; an element of another form is content and nothing more.

local CHUNK = 500
local SEEN_OFF = 60000 -- milliseconds; a read that was blocked on the server is over by then
local MOST_GONE = 1000
local MOST_COUNTED = 1000000

-- Number, deliveries and content of an element; no number if it is not one of ours.
local function parts_of(element)
  local id, count, content = string.match(element, '^(%d+):(%d+):(.*)$')
  if id and #id <= 16 and #count <= 9 then
    return id, tonumber(count), content
  end
  return nil, 0, element
end

-- Note that a consumer is alive for another lease.
local function beat(base, consumer, lease)
  -- A full server refuses the first write that needs memory, and no later one. This one needs none: a
  -- worker must be able to say that it is alive.
  redis.call('ZREM', base .. ':gone', consumer)
  redis.call('ZADD', base .. ':consumers', string.format('%.0f', now() + lease), consumer)
end

local function is_paused(base)
  return redis.call('HEXISTS', base, 'paused') == 1
end

local places = {}

-- The list where the messages of a queue wait. Asked for once in a script.
local function place_of(base)
  if not places[base] then
    places[base] = base .. (is_paused(base) and ':paused' or ':ready')
  end
  return places[base]
end

local function put(base, delay, content)
  local message = redis.call('HINCRBY', base, 'seq', 1) .. ':0:' .. content
  if delay <= 0 then
    redis.call('RPUSH', place_of(base), message)
    return
  end
  delay_until(base, now() + delay, message)
end

-- Put what a consumer holds back in front, counted as delivered; returns whether that was all.
local function take_back(base, consumer)
  local held = base .. ':held:' .. consumer
  for _ = 1, CHUNK do
    local message = redis.call('LINDEX', held, -1)
    if not message then
      return true
    end
    local id, count, content = parts_of(message)
    count = string.format('%d', math.min(count + 1, MOST_COUNTED))
    redis.call('LPUSH', place_of(base), (id or redis.call('HINCRBY', base, 'seq', 1)) .. ':' .. count .. ':' .. content)
    redis.call('RPOP', held)
  end
  return false
end

local base = KEYS[1]
local queue = redis.call('EXISTS', base) == 1
