-- Release what was sent to a consumer and never arrived: its connection was lost on the way. ARGV:
-- consumer, then the SHA-1 of each element that did arrive. Returns how many.
local held = KEYS[1] .. ':held:' .. ARGV[1]
local known, number = {}, 0
for place = 2, #ARGV do
  known[ARGV[place]] = true
end
local messages = redis.call('LRANGE', held, 0, -1)
for place = #messages, 1, -1 do
  if not known[redis.sha1hex(messages[place])] then
    redis.call('LPUSH', place_of(base), messages[place])
    redis.call('LREM', held, -1, messages[place])
    number = number + 1
  end
end
return number
