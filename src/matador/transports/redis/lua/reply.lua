-- Store replies, unless whoever asked is gone. KEYS: the reply address. ARGV: milliseconds for which they are
-- kept, the largest number, replies.
local key = KEYS[1] .. ':replies'
if redis.call('EXISTS', KEYS[1] .. ':used') == 0 then
  redis.call('UNLINK', key)
  return 0
end
for place = 3, #ARGV do
  redis.call('RPUSH', key, ARGV[place])
end
redis.call('LTRIM', key, -tonumber(ARGV[2]), -1)
redis.call('PEXPIRE', key, ARGV[1])
return 1
