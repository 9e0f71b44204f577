-- Take one certain job that waits, as moveToActive takes the next one.
-- KEYS: wait, active, prioritized, delayed, events, paused, job, lock
-- ARGV: job id, token, lock in ms, now in ms
-- Returns the job and when it would have been due, or nothing if another worker holds it.
local id = ARGV[1]
if redis.call('TYPE', KEYS[7]).ok ~= 'hash' then return false end
local due = redis.call('ZSCORE', KEYS[4], id)
local found = redis.call('LREM', KEYS[1], 1, id)
if found == 0 then found = redis.call('LREM', KEYS[6], 1, id) end
if found == 0 then found = redis.call('ZREM', KEYS[3], id) end
if found == 0 then found = redis.call('ZREM', KEYS[4], id) end
if found == 0 then return false end
redis.call('LPUSH', KEYS[2], id)
redis.call('SET', KEYS[8], ARGV[2], 'PX', ARGV[3])
redis.call('HSET', KEYS[7], 'processedOn', ARGV[4])
redis.pcall('HINCRBY', KEYS[7], 'ats', 1)
redis.pcall('XADD', KEYS[5], '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
return {redis.call('HGETALL', KEYS[7]), due and math.floor(tonumber(due) / 0x1000) or 0}
