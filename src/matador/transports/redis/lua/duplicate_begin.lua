-- Who is the first with a key? ARGV: who asks, for how many ms it holds the key.
-- Gives {'done', result}, {'running'} or {'new'}.
local found = redis.call('HMGET', KEYS[1], 'result', 'owner')
if found[1] then
  return { 'done', found[1] }
end
if found[2] and found[2] ~= ARGV[1] then
  return { 'running' }
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 'new' }
