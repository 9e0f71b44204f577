-- Store messages. ARGV: delay, content, again and again. Gives 1; 0 if the queue is not there and nothing
-- was stored; else {place from 0, why} of those that were not stored.
local base, refused = KEYS[1], {}
if redis.call('EXISTS', base) == 0 then
  return 0
end
for place = 1, #ARGV, 2 do
  local stored, why = pcall(put, base, tonumber(ARGV[place]), ARGV[place + 1])
  if not stored then
    refused[#refused + 1] = { (place - 1) / 2, said(why) }
  end
end
pcall(trim, base)
return #refused == 0 and 1 or refused
