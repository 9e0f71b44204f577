-- Move delayed messages that are due, clean up. ARGV: consumer, the lease of holders
-- whose name has none.
-- Returns: milliseconds until the next is due (-1: none is delayed), whether something can be claimed, and
-- what went wrong if something did. nil: no such queue.
local base = KEYS[1]
local queue = settings(base)
if not queue then
  return nil
end
tidy(base, queue)

local function move_due()
  local key, time = base .. ':delayed', now()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', time, 'LIMIT', 0, 200)) do
    local level, fields = delayed_of(member)
    add(base, queue, math.min(level, queue.levels - 1), fields)
    redis.call('ZREM', key, member)
  end
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, moment(first) - time) or -1
end

local function has_stale()
  for _, lane in ipairs(lanes(queue)) do
    if #stale(base .. ':' .. lane, ARGV[2], 1) > 0 then
      return 1
    end
  end
  return 0
end

-- An error of one does not keep the other from being done.
local moved, wait = pcall(move_due)
local looked, claimable = pcall(has_stale)
return {
  moved and wait or -1,
  looked and claimable or 0,
  not moved and said(wait) or not looked and said(claimable) or '',
}
