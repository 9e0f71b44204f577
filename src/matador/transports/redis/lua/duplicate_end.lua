-- For the holder of a key only. ARGV: who asks, 'hold', 'finish' or 'forget', ms, result.
-- Gives 1, or 0 if another one holds the key, or has finished.
local key, owner, action = KEYS[1], ARGV[1], ARGV[2]
local found = redis.call('HMGET', key, 'result', 'owner')
if found[1] or (found[2] and found[2] ~= owner) then
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
  -- Its time was over, but nobody came meanwhile: it holds the key again.
  redis.call('HSET', key, 'owner', owner)
end
redis.call('PEXPIRE', key, ARGV[3])
return 1
