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

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Wake the processes that look after a queue.
local function ring(base)
  redis.pcall('XADD', base .. ':bell', 'MAXLEN', '1', '*', 'r', '1')
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
