-- Takes the next jobs of a queue that has no pause, no limits and no job that is due after a delay: what
-- BullMQ's moveToActive does for them, for many at once and with fewer commands.
-- KEYS: wait, active, prioritized, events, delayed, meta, pc, marker
-- ARGV: key prefix of the queue, how many at most, lock in ms, what their tokens begin with, the number
--       that ends the first token
-- Returns whether the next job takes BullMQ's own script (1), when the next delayed job is due in ms (0:
-- there is none), then id and fields of each job.
local prefix, most, lock, owner, first = unpack(ARGV)
local wait, active, events = KEYS[1], KEYS[2], KEYS[4]
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local meta = redis.pcall('HMGET', KEYS[6], 'paused', 'concurrency', 'max')
local delayed = redis.pcall('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
if meta.err or meta[1] or meta[2] or meta[3] or delayed.err then return {1, 0} end
local due = delayed[2] and delayed[2] / 0x1000 or 0
if delayed[2] and due < now + 1 then return {1, 0} end

-- Keys of the queue beside its jobs: no job has such an id, except by mistake.
local own = {@KEYS@}
local answer = {0, 0}
for number = tonumber(first), first + most - 1 do
  local id = redis.pcall('RPOPLPUSH', wait, active)
  if not id then
    if redis.pcall('ZCARD', KEYS[3]) == 0 then
      redis.call('DEL', KEYS[7])
      answer[2] = due
    else
      answer[1] = 1
    end
    break
  elseif type(id) == 'table' then
    answer[1] = 1
    break
  end
  local key = prefix .. id
  local fields = redis.pcall('HGETALL', key)
  if fields.err or #fields == 0 or own[id] or string.sub(id, 1, 2) == '0:' then
    redis.call('RPUSH', wait, (redis.call('LPOP', active))) -- as it was
    answer[1] = 1
    break
  end
  local started = false
  for field = 1, #fields, 2 do
    if fields[field] == 'ats' then started = true end
  end
  redis.call('SET', key .. ':lock', string.format('%s:%.0f', owner, number), 'PX', lock)
  redis.pcall('XADD', events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  if not started then
    redis.call('HSET', key, 'processedOn', now, 'ats', 1)
  else
    redis.call('HSET', key, 'processedOn', now)
    local count = redis.pcall('HINCRBY', key, 'ats', 1)
    if type(count) == 'table' then redis.call('HSET', key, 'ats', 1) end
  end
  answer[#answer + 1] = id
  answer[#answer + 1] = fields
end
if #answer > 2 then redis.pcall('ZADD', KEYS[8], 0, '0') end
return answer
