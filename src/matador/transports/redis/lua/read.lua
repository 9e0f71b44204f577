-- Deliver what is new, the highest lane first. ARGV: consumer, limit. Returns lane and entries for each
-- lane.
local consumer, left = ARGV[1], tonumber(ARGV[2])
local found = {}
for _, lane in ipairs(lanes(queue)) do
  if left > 0 and lane ~= 't' then
    local key = base .. ':' .. lane
    local reply = grouped(key, 'XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', left,
      'STREAMS', key, '>')
    if reply then
      local entries = reply[1][2]
      found[#found + 1] = lane
      found[#found + 1] = entries
      left = left - #entries
    end
  end
end
return found
