-- Settle. KEYS: the queue, then queues of successors, all of one hash tag. ARGV: consumer, then for
-- each: element, index of the successor's queue in KEYS (0: release, -1: remove), delay, content.
-- Returns for each: 0 done, 1 lost, 2 no such queue, or why it failed.
local base, held = KEYS[1], KEYS[1] .. ':held:' .. ARGV[1]
local outcomes = {}

local function settle(message, target, delay, content)
  if target > 0 and redis.call('EXISTS', KEYS[target]) == 0 then
    return 2
  end
  if not redis.call('LPOS', held, message) then
    return 1
  end
  if target == 0 then
    redis.call('LPUSH', base .. ':ready', message)
  else
    put(KEYS[target], delay, content)
  end
  redis.call('LREM', held, 1, message)
  return 0
end

for place = 2, #ARGV, 4 do
  local target, outcome = tonumber(ARGV[place + 1]), 0
  if target == -1 then
    outcome = redis.call('LREM', held, 1, ARGV[place]) == 1 and 0 or 1
  else
    local tried
    tried, outcome = pcall(settle, ARGV[place], target, tonumber(ARGV[place + 2]), ARGV[place + 3])
    outcome = tried and outcome or said(outcome)
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
