-- Deliver messages. ARGV: consumer, lease, limit. Returns the elements.
local consumer = ARGV[1]
beat(base, consumer, tonumber(ARGV[2]))
local found = {}
for place = 1, tonumber(ARGV[3]) do
  local message = redis.call('LMOVE', base .. ':ready', base .. ':held:' .. consumer, 'LEFT', 'RIGHT')
  if not message then
    break
  end
  found[place] = message
end
return found
