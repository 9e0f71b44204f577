-- Store messages. ARGV: delay, content, again and again. Says whether the queue is there; else
-- nothing is stored.
local base = KEYS[1]
if redis.call('EXISTS', base) == 0 then
  return 0
end
for place = 1, #ARGV, 2 do
  put(base, tonumber(ARGV[place]), ARGV[place + 1])
end
trim(base)
return 1
