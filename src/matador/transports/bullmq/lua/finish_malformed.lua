-- Finish a malformed job at which BullMQ's own script fails: remove it, or put it among the failed ones.
-- Its parent is not notified.
-- KEYS: active, failed, stalled, events, job, lock
-- ARGV: job id, token, now in ms, and for a failed one: kind, reason, is it bare (1)
local id, failed = ARGV[1], #ARGV > 3
if redis.pcall('GET', KEYS[6]) ~= ARGV[2] then return -2 end
if redis.call('TYPE', KEYS[5]).ok ~= 'hash' then return -1 end
if failed then
  redis.call('ZADD', KEYS[2], ARGV[3], id) -- an error here has changed nothing
  redis.call('HSET', KEYS[5], 'failedReason', ARGV[5], 'finishedOn', ARGV[3], 'stc', 0,
    'matador-kind', ARGV[4], 'matador-taken', 0, 'matador-bare', ARGV[6])
  redis.call('HDEL', KEYS[5], 'defa')
else
  redis.call('DEL', KEYS[5])
end
redis.call('LREM', KEYS[1], -1, id)
redis.pcall('SREM', KEYS[3], id)
redis.call('DEL', KEYS[6])
redis.pcall('XADD', KEYS[4], '*', 'event', failed and 'failed' or 'completed', 'jobId', id,
  failed and 'failedReason' or 'returnvalue', ARGV[5] or 'null', 'prev', 'active')
return 0
