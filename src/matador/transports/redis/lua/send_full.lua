-- Store messages. ARGV, again and again: delay, priority, how many fields follow, fields. Says
-- whether the queue is there; else nothing is stored.
local base = KEYS[1]
local queue = settings(base)
if not queue then
  return 0
end
local place = 1
while place <= #ARGV do
  local count = tonumber(ARGV[place + 2])
  local fields = { unpack(ARGV, place + 3, place + 2 + count) }
  put(base, queue, tonumber(ARGV[place]), ARGV[place + 1], fields)
  place = place + 3 + count
end
if queue.max_length or queue.ttl then
  trim(base, queue)
end
return 1
