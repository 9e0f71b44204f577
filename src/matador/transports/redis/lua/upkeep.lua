-- Move delayed messages that are due, clean up. ARGV: consumer, the lease of holders whose name has none.
-- Returns: milliseconds until the next is due (-1: none is delayed), whether something can be claimed,
-- what went wrong if something did, and how many pauses have ended.
tidy(base, queue)

local function move(member)
  local level, fields = delayed_of(member)
  add(base, queue, math.min(level, queue.levels - 1), fields)
end

local function has_stale()
  if is_paused(base) then
    return 0
  end
  for _, lane in ipairs(lanes(queue)) do
    if #stale(base .. ':' .. lane, ARGV[2], 1) > 0 then
      return 1
    end
  end
  return 0
end

-- An error of one does not keep the other from being done.
local moved, wait = pcall(move_due, base, 200, move)
local looked, claimable = pcall(has_stale)
return {
  moved and wait or -1,
  looked and claimable or 0,
  not moved and said(wait) or not looked and said(claimable) or '',
  number(redis.call('HGET', base, 'resumed'), 0, FOR_EVER) or 0,
}
