-- Shared by all scripts of queues, in front of each.
--
-- A script is atomic but is not rolled back. A full server refuses the first write of a script and no
-- later one; other errors (a key of another type) can come from any command. So a script stores before
-- it removes, tries each message by itself, and ignores errors of whatever follows.
--
-- Anybody can write to the keys: nothing in them may make a script fail.

-- A whole number within bounds; nil for anything else.
local function number(given, low, high)
  local found = tonumber(given)
  if found and found >= low and found <= high then
    return math.floor(found)
  end
end

-- The text of an error.
local function said(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

local LATEST = 100000000000000 -- milliseconds; as far as any date goes

-- A score as milliseconds that Python and Redis accept, whatever the score was.
local function moment(score)
  return math.floor(math.max(0, math.min(tonumber(score), LATEST)))
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Wake the processes that look after a queue.
local function ring(base)
  redis.pcall('XADD', base .. ':bell', 'MAXLEN', '1', '*', 'r', '1')
end

-- Move delayed messages that are due, a bounded number, each by 'move'. Returns the milliseconds until the
-- next one is due; -1: none is delayed.
local function move_due(base, most, move)
  local key, time = base .. ':delayed', now()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', time, 'LIMIT', 0, most)) do
    move(member)
    redis.call('ZREM', key, member)
  end
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, moment(first) - time) or -1
end

-- Add to a sorted set of delayed messages; wakes its watchers if it is due before all others.
local function delay_until(base, due, member)
  local key = base .. ':delayed'
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', key, string.format('%.0f', due), member)
  if not first or due < tonumber(first) then
    ring(base)
  end
end
