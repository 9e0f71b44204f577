-- Completes jobs that are removed then, that have no parent, no children and no unique key: what BullMQ's
-- moveToFinished does for them, for many at once and with fewer commands.
-- KEYS: active, events, stalled, meta, wait, prioritized, metrics
-- ARGV: key prefix of the queue, now in ms, then for each job: id, token, result
-- Returns for each job 0, a negative number as BullMQ does, or 1 if this takes BullMQ's own script.
local prefix, now, active, events = ARGV[1], ARGV[2], KEYS[1], KEYS[2]
local answers, ids = {}, {}

-- BullMQ counts by the minute: the first job of a minute is not a plain one.
local most = redis.pcall('HGET', KEYS[4], 'opts.maxLenEvents')
local counted = redis.pcall('HGET', KEYS[7], 'prevTS')
most, counted = type(most) == 'string' and tonumber(most), type(counted) == 'string' and tonumber(counted)
if not most or not counted or math.floor(now / 60000) > math.floor(counted / 60000) then
  for at = 3, #ARGV, 3 do answers[#answers + 1] = 1 end
  return answers
end

redis.pcall('XTRIM', events, 'MAXLEN', '~', most)
for at = 3, #ARGV, 3 do
  local id, token = ARGV[at], ARGV[at + 1]
  local key = prefix .. id
  local lock, answer = key .. ':lock', 1
  local job = redis.pcall('HMGET', key, 'timestamp', 'parentKey', 'parent', 'deid')
  if job[1] and not (job[2] or job[3] or job[4])
    and redis.call('EXISTS', key .. ':dependencies', key .. ':unsuccessful') == 0 then
    local held = redis.pcall('GET', lock)
    if held == token then
      local removed = redis.pcall('LREM', active, -1, id)
      if removed == 1 then
        redis.call('DEL', lock, key, key .. ':logs', key .. ':processed', key .. ':failed')
        redis.pcall('XADD', events, '*', 'event', 'completed', 'jobId', id, 'returnvalue', ARGV[at + 2],
          'prev', 'active')
        ids[#ids + 1] = id
        answer = 0
      end
    elseif type(held) == 'string' then
      answer = -6
    elseif not held then
      answer = -2
    end
  end
  answers[#answers + 1] = answer
end

if #ids > 0 then
  redis.pcall('SREM', KEYS[3], unpack(ids))
  local count = redis.pcall('HINCRBY', KEYS[7], 'count', #ids)
  if type(count) == 'table' then redis.pcall('HSET', KEYS[7], 'count', #ids) end
  local prioritized = redis.pcall('ZCARD', KEYS[6])
  if redis.pcall('LLEN', active) == 0 and redis.pcall('LLEN', KEYS[5]) == 0
    and (prioritized == 0 or type(prioritized) == 'table') then
    redis.pcall('XADD', events, '*', 'event', 'drained')
  end
end
return answers
