-- Who is the first with a key? ARGV: owner, action, milliseconds, result.
-- 'begin' returns {'done', result}, {'running'} or {'new'}; 'hold', 'finish' and 'forget' are for the
-- holder of the key, and return 1, or 0 if another one holds the key or has finished.
local key, owner, action = KEYS[1], ARGV[1], ARGV[2]
local found = redis.call('HMGET', key, 'result', 'owner')
local elsewhere = found[2] and found[2] ~= owner
if action == 'begin' then
  if found[1] then
    return { 'done', found[1] }
  elseif elsewhere then
    return { 'running' }
  end
elseif found[1] or elsewhere then
  return 0
end
if action == 'forget' then
  redis.call('UNLINK', key)
  return 1
end
if action == 'finish' then
  redis.call('HSET', key, 'result', ARGV[4])
  redis.call('HDEL', key, 'owner')
else
  -- If its time was over and nobody came meanwhile, it holds the key again.
  redis.call('HSET', key, 'owner', owner)
end
redis.call('PEXPIRE', key, ARGV[3])
return action == 'begin' and { 'new' } or 1
