-- Put a job among the failed ones in the plainest way, whatever is in it: its parents are not told.
-- KEYS: active, failed, stalled, events, job, lock
-- ARGV: job id, token, reason, kind, now in ms
local id = ARGV[1]
if redis.pcall('GET', KEYS[6]) ~= ARGV[2] then return -2 end
if redis.call('TYPE', KEYS[5]).ok ~= 'hash' then return -1 end
redis.call('ZADD', KEYS[2], ARGV[5], id) -- what fails here has changed nothing
redis.call('HSET', KEYS[5], 'failedReason', ARGV[3], 'finishedOn', ARGV[5], 'stc', 0,
  'matador-kind', ARGV[4], 'matador-taken', 0)
redis.call('HDEL', KEYS[5], 'defa')
redis.call('LREM', KEYS[1], -1, id)
redis.pcall('SREM', KEYS[3], id)
redis.call('DEL', KEYS[6])
redis.pcall('XADD', KEYS[4], '*', 'event', 'failed', 'jobId', id, 'failedReason', ARGV[3],
  'prev', 'active')
return 0
