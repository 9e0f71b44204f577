-- Adds jobs without delay, priority, unique key or parent: what BullMQ's addStandardJob and our add_new
-- do for them, for many at once and with fewer commands.
-- KEYS: wait, meta, id, events, marker
-- ARGV: key prefix of the queue, now in ms, then for each job: id, name, data, options as JSON
-- Returns for each job 0, or -101 if its id is taken; nothing if this takes BullMQ's own script.
local prefix, now, events = ARGV[1], ARGV[2], KEYS[4]
local meta = redis.pcall('HMGET', KEYS[2], 'opts.maxLenEvents', 'paused', 'concurrency', 'matador-priorities')
local most = tonumber(meta[1])
if not most or meta[2] or meta[3] or meta[4] then return false end

local answers, new, ids = {}, {}, {}
for at = 3, #ARGV, 4 do
  local id = ARGV[at]
  if new[id] or redis.call('EXISTS', prefix .. id) == 1 then
    answers[#answers + 1] = -101
  else
    new[id] = at
    ids[#ids + 1] = id
    answers[#answers + 1] = 0
  end
end
if #ids == 0 then return answers end

-- What may fail comes first: then no job is stored that does not wait.
local function fails(...)
  local answer = redis.pcall(...)
  return type(answer) == 'table' and answer.err
end
if fails('INCRBY', KEYS[3], #ids) then return false end
if fails('ZADD', KEYS[5], 0, '0') or fails('LPUSH', KEYS[1], unpack(ids)) then
  redis.call('DECRBY', KEYS[3], #ids)
  return false
end

for at = 3, #ARGV, 4 do
  local id, name = ARGV[at], ARGV[at + 1]
  if new[id] == at then
    redis.call('HSET', prefix .. id, 'name', name, 'data', ARGV[at + 2], 'opts', ARGV[at + 3],
      'timestamp', now, 'delay', '0', 'priority', '0')
    redis.pcall('XADD', events, '*', 'event', 'added', 'jobId', id, 'name', name)
    redis.pcall('XADD', events, 'MAXLEN', '~', most, '*', 'event', 'waiting', 'jobId', id)
  end
end
return answers
