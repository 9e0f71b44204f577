-- What every script shares, put in front of each.
--
-- A queue is a hash with its settings; all its other keys have the name of that hash in front, and
-- so its hash tag: a script stays within one slot of a cluster. Its messages are in lanes, one
-- stream each: 't' for those that were taken out of their turn, '10' to '1' for priorities where
-- they are declared, and '0'. Every lane has the consumer group GROUP. What was given back belongs
-- to the consumer NOBODY and looks idle for ever, so it is found together with what is stale.
--
-- The delivery count that Redis keeps is the number of the claim: it only ever grows, so it tells
-- one hold from a later one. Deliveries that do not count are subtracted (':uncounted').

-- A script is atomic but is not rolled back: a full server ends it at the next write. So what
-- stores comes before what removes; at worst there is something twice.

local GROUP = 'matador'
local NOBODY = '-'
local FOR_EVER = 1000000000000
local HIGHEST = 10
local CHUNK = 1000

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function settings(base)
  local found = redis.call('HMGET', base, 'levels', 'priorities', 'retention', 'max_length', 'ttl')
  if not found[1] then
    return nil
  end
  return {
    levels = tonumber(found[1]),
    priorities = found[2] == '1',
    retention = tonumber(found[3]),
    max_length = tonumber(found[4]),
    ttl = tonumber(found[5]),
  }
end

local function lanes(queue)
  local names = { 't' }
  for level = queue.levels - 1, 0, -1 do
    names[#names + 1] = tostring(level)
  end
  return names
end

-- Call a command with many arguments, some at a time: Lua cannot unpack them all.
local function in_chunks(items, call)
  for first = 1, #items, CHUNK do
    call(unpack(items, first, math.min(first + CHUNK - 1, #items)))
  end
end

local function ring(base)
  redis.call('XADD', base .. ':bell', 'MAXLEN', '1', '*', 'r', '1')
end

-- Ids that grow through all lanes, so that a reader of the whole queue misses nothing.
local function next_id(base, queue)
  if queue.levels == 1 then
    return '*'
  end
  local last = redis.call('HMGET', base, 'last_ms', 'last_seq')
  local ms, seq = now(), 0
  if last[1] and ms <= tonumber(last[1]) then
    ms, seq = tonumber(last[1]), tonumber(last[2]) + 1
  end
  redis.call('HSET', base, 'last_ms', ms, 'last_seq', seq)
  return string.format('%.0f-%d', ms, seq)
end

-- Store a message, its fields a flat array of names and values; delay in milliseconds.
local function put(base, queue, delay, priority, fields)
  local level = 0
  if queue.priorities and priority ~= '' then
    level = math.max(0, math.min(HIGHEST, tonumber(priority)))
  end
  if delay <= 0 then
    redis.call('XADD', base .. ':' .. level, next_id(base, queue), unpack(fields))
    return
  end
  local key = base .. ':delayed'
  local due = now() + delay
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  local place = redis.call('HINCRBY', base, 'delayed', 1)
  local member = string.format('%016d', place) .. cmsgpack.pack({ level, fields })
  redis.call('ZADD', key, string.format('%.0f', due), member)
  if not first or due < tonumber(first) then
    ring(base)
  end
end

-- Drop what a queue of dead letters has too much of, and what has been there for too long.
local function trim(base, queue)
  if queue.max_length then
    local length = math.max(0, queue.max_length - redis.call('XLEN', base .. ':t'))
    redis.call('XTRIM', base .. ':0', 'MAXLEN', '=', length)
  end
  if queue.ttl then
    redis.call('XTRIM', base .. ':0', 'MINID', '=', string.format('%.0f', now() - queue.ttl + 1))
  end
end

local function forget_uncounted(base, lane, ids)
  local key = base .. ':uncounted'
  if redis.call('EXISTS', key) == 1 then
    for _, id in ipairs(ids) do
      redis.call('HDEL', key, lane .. ':' .. id)
    end
  end
end

-- Forget entries of a lane, whoever holds them.
local function remove(base, lane, ids)
  local key = base .. ':' .. lane
  in_chunks(ids, function(...)
    redis.call('XACK', key, GROUP, ...)
    redis.call('XDEL', key, ...)
  end)
  forget_uncounted(base, lane, ids)
end

-- Forget what is finished and past its retention, a bounded number; says how many.
local function expire(base, queue)
  if not queue.retention then
    return 0
  end
  local key = base .. ':done'
  local over = redis.call('ZRANGEBYSCORE', key, '-inf', now(), 'LIMIT', 0, CHUNK)
  for _, place in ipairs(over) do
    local lane, id = string.match(place, '^(%w+):(.*)$')
    redis.call('XDEL', base .. ':' .. lane, id)
  end
  if #over > 0 then
    redis.call('ZREM', key, unpack(over))
  end
  return #over
end

local function tidy(base, queue)
  trim(base, queue)
  while expire(base, queue) == CHUNK do
  end
end

-- Give an entry back as if it had never been delivered.
local function give_back(base, lane, id)
  local key = base .. ':' .. lane
  redis.call('XCLAIM', key, GROUP, NOBODY, 0, id, 'IDLE', FOR_EVER, 'JUSTID')
  redis.call('HINCRBY', base .. ':uncounted', lane .. ':' .. id, 1)
end

-- Who holds an entry, and by which claim: consumer, count, idle; nil if nobody does.
local function holder(key, id)
  local row = redis.call('XPENDING', key, GROUP, id, id, 1)[1]
  if row then
    return row[2], row[4], row[3]
  end
end

local function group_of(key)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local found = {}
    for place = 1, #group, 2 do
      found[group[place]] = group[place + 1]
    end
    if found['name'] == GROUP then
      return found
    end
  end
end

local function uncounted(base, lane, id)
  return tonumber(redis.call('HGET', base .. ':uncounted', lane .. ':' .. id) or '0')
end
