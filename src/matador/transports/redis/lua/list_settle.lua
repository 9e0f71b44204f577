-- Settle. KEYS: the queue, then queues for successors, all of one hash tag. ARGV: consumer, then
-- again and again: message, place of the successor's queue in KEYS (0: give back, -1: forget), delay,
-- content. For each: 0 done, 1 lost, 2 no such queue.
local base, held = KEYS[1], KEYS[1] .. ':held:' .. ARGV[1]
local outcomes = {}
for place = 2, #ARGV, 4 do
  local message, target = ARGV[place], tonumber(ARGV[place + 1])
  local outcome = 0
  if target > 0 and redis.call('EXISTS', KEYS[target]) == 0 then
    outcome = 2
  elseif not redis.call('LPOS', held, message) then
    outcome = 1
  else
    if target == 0 then
      redis.call('LPUSH', base .. ':ready', message)
    elseif target > 0 then
      put(KEYS[target], tonumber(ARGV[place + 2]), ARGV[place + 3])
      trim(KEYS[target])
    end
    redis.call('LREM', held, 1, message)
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
