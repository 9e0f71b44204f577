-- Let one owner at a time work on a key. ARGV: owner, action, milliseconds, result.
-- 'begin' holds the key, 'finish' keeps the result, 'forget' makes the key new. Returns 1; 0 if another
-- owner holds the key or has finished, but 'begin' returns the result.
local key, owner, action = KEYS[1], ARGV[1], ARGV[2]
local found = redis.call('HMGET', key, 'result', 'owner')
if found[1] then
  return action == 'begin' and found[1] or 0
elseif found[2] and found[2] ~= owner then
  return 0
elseif action == 'forget' then
  return redis.call('UNLINK', key)
elseif action == 'finish' then
  redis.call('HSET', key, 'result', ARGV[4])
  redis.call('HDEL', key, 'owner')
else
  redis.call('HSET', key, 'owner', owner)
end
redis.call('PEXPIRE', key, ARGV[3])
return 1
