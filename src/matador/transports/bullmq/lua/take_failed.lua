-- Lock failed jobs of one kind that nobody holds, and count that they were handed out. They stay
-- in the failed set; with the lock on, neither BullMQ nor a dashboard removes or retries them.
-- KEYS: failed
-- ARGV: key prefix of the queue, kind, is it the kind of jobs that name none, how many at most,
--       lock in ms, token, job ids (none: from the oldest on)
local prefix, kind, most = ARGV[1], ARGV[2], tonumber(ARGV[4])
local taken = {}

local function take(id)
  local key = prefix .. id
  local named = redis.call('HGET', key, 'matador-kind')
  if named ~= kind and (named or ARGV[3] ~= '1') then return end
  if redis.call('SET', key .. ':lock', ARGV[6], 'PX', ARGV[5], 'NX') then
    redis.call('HINCRBY', key, 'matador-taken', 1)
    taken[#taken + 1] = {id, redis.call('HGETALL', key)}
  end
end

if #ARGV > 6 then
  for index = 7, #ARGV do
    if redis.call('ZSCORE', KEYS[1], ARGV[index]) then take(ARGV[index]) end
  end
  return taken
end
local start = 0
while #taken < most do
  local ids = redis.call('ZRANGE', KEYS[1], start, start + 99)
  if #ids == 0 then break end
  for _, id in ipairs(ids) do
    if #taken < most then take(id) end
  end
  start = start + 100
end
return taken
