-- Give back what a consumer was sent but never got: its connection was lost on the way. ARGV:
-- consumer, then lane:id of all that it did get.
local base, consumer = KEYS[1], ARGV[1]
local queue = settings(base)
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
