-- Release what was sent to a consumer and never arrived: its connection was lost on the way. ARGV:
-- consumer, then lane:id of each entry that did arrive. Returns how many.
local consumer = ARGV[1]
local known, number = {}, 0
for place = 2, #ARGV do
  known[ARGV[place]] = true
end
for _, lane in ipairs(queue and lanes(queue) or {}) do
  local key = base .. ':' .. lane
  for _, row in ipairs(grouped(key, 'XPENDING', key, GROUP, '-', '+', 1000000, consumer)) do
    if not known[lane .. ':' .. row[1]] then
      give_back(base, lane, row[1])
      number = number + 1
    end
  end
end
if number > 0 then
  ring(base)
end
return number
