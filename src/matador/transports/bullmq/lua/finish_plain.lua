-- Completes jobs that have no parent, no children and no unique key: what BullMQ's moveToFinished does for
-- them, for many at once and with fewer commands.
-- KEYS: active, events, stalled, meta, wait, prioritized, completed, metrics
-- ARGV: key prefix of the queue, now in ms, then what removeOnComplete says of all of them: for how many
--   seconds and how many completed jobs are kept (-1: any, no jobs: 0), and how many are deleted at once
--   because of their age; then for each job: id, token, result
-- Returns for each job 0, a negative number as BullMQ does, or 1 if this takes BullMQ's own script.
local prefix, now, active, events, completed, metrics = ARGV[1], ARGV[2], KEYS[1], KEYS[2], KEYS[7], KEYS[8]
local age, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST = 6
local answers, ids = {}, {}

-- BullMQ counts by the minute: the first job of a minute is not a plain one.
local most = redis.pcall('HGET', KEYS[4], 'opts.maxLenEvents')
local counted = redis.pcall('HGET', metrics, 'prevTS')
most, counted = type(most) == 'string' and tonumber(most), type(counted) == 'string' and tonumber(counted)
if not most or not counted or math.floor(now / 60000) > math.floor(counted / 60000) then
  for at = FIRST, #ARGV, 3 do answers[#answers + 1] = 1 end
  return answers
end

redis.pcall('XTRIM', events, 'MAXLEN', '~', most)
local scores = {}
for at = FIRST, #ARGV, 3 do
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
        if count == 0 then
          redis.call('DEL', lock, key, key .. ':logs', key .. ':processed', key .. ':failed')
        else
          redis.call('DEL', lock)
          redis.pcall('HINCRBY', key, 'atm', 1)
          redis.call('HSET', key, 'returnvalue', ARGV[at + 2], 'finishedOn', now)
          scores[#scores + 1] = now + #ids / 1000 -- in the order in which they completed
          scores[#scores + 1] = id
        end
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
  if #scores > 0 then
    redis.pcall('ZADD', completed, unpack(scores))
    local function delete(old)
      if type(old) ~= 'table' or old.err then return end
      for _, id in ipairs(old) do
        local key = prefix .. id
        redis.call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed',
          key .. ':unsuccessful')
        redis.call('ZREM', completed, id)
      end
    end
    if age >= 0 then
      delete(redis.pcall('ZRANGEBYSCORE', completed, '-inf', now - age * 1000, 'LIMIT', 0, ARGV[5]))
    end
    if count > 0 then delete(redis.pcall('ZREVRANGE', completed, count, -1)) end
  end
  local all = redis.pcall('HINCRBY', metrics, 'count', #ids)
  if type(all) == 'table' then redis.pcall('HSET', metrics, 'count', #ids) end
  local prioritized = redis.pcall('ZCARD', KEYS[6])
  if redis.pcall('LLEN', active) == 0 and redis.pcall('LLEN', KEYS[5]) == 0
    and (prioritized == 0 or type(prioritized) == 'table') then
    redis.pcall('XADD', events, '*', 'event', 'drained')
  end
end
return answers
