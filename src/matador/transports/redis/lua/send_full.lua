-- Store messages. ARGV, again and again: delay, priority, how many fields follow, fields. Gives 1; 0 if
-- the queue is not there and nothing was stored; else {place from 0, why} of those that were not stored.
local base = KEYS[1]
local queue = settings(base)
if not queue then
  return 0
end
local place, index, refused = 1, 0, {}
while place <= #ARGV do
  local count = tonumber(ARGV[place + 2])
  local fields = { unpack(ARGV, place + 3, place + 2 + count) }
  local stored, why = pcall(put, base, queue, tonumber(ARGV[place]), ARGV[place + 1], fields)
  if not stored then
    refused[#refused + 1] = { index, said(why) }
  end
  place, index = place + 3 + count, index + 1
end
pcall(trim, base, queue)
return #refused == 0 and 1 or refused
