-- Settle. KEYS: the queue, then queues of successors. ARGV, for each: consumer, element, index of the
-- successor's queue in KEYS (0: release, -1: remove), delay, content. Returns for each: 0 done, 1 lost,
-- 2 no such queue, or why it failed.
local outcomes = {}

local function settle(held, message, target, delay, content)
  if target == -1 then
    return redis.call('LREM', held, 1, message) == 1 and 0 or 1
  end
  if target > 0 and redis.call('EXISTS', KEYS[target]) == 0 then
    return 2
  end
  if not redis.call('LPOS', held, message) then
    return 1
  end
  if target == 0 then
    redis.call('LPUSH', place_of(base), message)
  else
    put(KEYS[target], delay, content)
  end
  redis.call('LREM', held, 1, message)
  return 0
end

for place = 1, #ARGV, 5 do
  local held = base .. ':held:' .. ARGV[place]
  local tried, outcome = pcall(settle, held, ARGV[place + 1], tonumber(ARGV[place + 2]),
    tonumber(ARGV[place + 3]), ARGV[place + 4])
  outcomes[#outcomes + 1] = tried and outcome or said(outcome)
end
return outcomes
