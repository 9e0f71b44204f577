-- Lock failed jobs of one kind that no worker holds, and count the delivery. They stay in the failed set;
-- while they are locked, neither BullMQ nor a dashboard removes or retries them.
-- KEYS: failed
-- ARGV: key prefix of the queue, kind, the other kinds in one text with commas around each (jobs of none
--       of them are of this kind) or nothing, how many at most, lock in ms, token, job ids (none: the
--       oldest ones)
local prefix, kind, others, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local taken = {}

local function is_ours(named)
  if named == kind then return true end
  return others ~= '' and not (named and string.find(others, ',' .. named .. ',', 1, true))
end

local function take(id)
  local key = prefix .. id
  local named = redis.pcall('HGET', key, 'matador-kind')
  if type(named) == 'table' or not is_ours(named) or redis.call('EXISTS', key) == 0 then return end
  if redis.call('SET', key .. ':lock', ARGV[6], 'PX', ARGV[5], 'NX') then
    local count = redis.pcall('HINCRBY', key, 'matador-taken', 1)
    if type(count) == 'table' then redis.call('HSET', key, 'matador-taken', 1) end
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
