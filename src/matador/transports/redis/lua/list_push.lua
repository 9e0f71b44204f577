-- Store messages. ARGV, for each: delay, content. Returns 1, or {index from 0, why} of those that were
-- not stored.
local refused = {}
for place = 1, #ARGV, 2 do
  local stored, why = pcall(put, base, tonumber(ARGV[place]), ARGV[place + 1])
  if not stored then
    refused[#refused + 1] = { (place - 1) / 2, said(why) }
  end
end
return #refused == 0 and 1 or refused
