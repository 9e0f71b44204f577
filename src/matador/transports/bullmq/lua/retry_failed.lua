-- In front of reprocessJob: nothing of the last failure counts. Refused while a worker holds the job.
-- KEYS: job, events, failed, ...
-- ARGV: job id, ...
if redis.call('EXISTS', KEYS[1] .. ':lock') == 1 then return -2 end
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  local queue, forget = string.sub(KEYS[3], 1, -#'failed' - 1), {'stc', 'stacktrace', 'defa',
    'matador-kind', 'matador-taken', 'matador-bare', 'matador-error-type'}
  redis.call('HDEL', KEYS[1], unpack(forget))
  -- Parents in this queue that failed with it wait for it again.
  local child = KEYS[1]
  while true do
    local parent = redis.call('HGET', child, 'parentKey')
    if not parent or string.sub(parent, 1, #queue) ~= queue then break end
    if redis.call('ZREM', parent .. ':unsuccessful', child) == 0 then break end
    redis.call('SADD', parent .. ':dependencies', child)
    local id = string.sub(parent, #queue + 1)
    if redis.call('ZREM', queue .. 'failed', id) + redis.call('LREM', queue .. 'wait', 1, id)
      + redis.call('LREM', queue .. 'paused', 1, id)
      + redis.call('ZREM', queue .. 'prioritized', id) == 0 then break end
    redis.call('HDEL', parent, 'atm', 'ats', 'failedReason', 'finishedOn', 'processedOn',
      unpack(forget))
    local added = redis.call('HGET', parent, 'timestamp') or 0
    redis.call('ZADD', queue .. 'waiting-children', added, id)
    child = parent
  end
end
