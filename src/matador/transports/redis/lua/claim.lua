-- Deliver again what was released, and what was not renewed within its holder's lease. ARGV: consumer,
-- limit, the lease of holders whose name has none. Returns {lane, id, fields, claim, deliveries that do
-- not count} for each.
local consumer, left = ARGV[1], tonumber(ARGV[2])
local found = {}
if is_paused(base) then
  return found
end
for _, lane in ipairs(lanes(queue)) do
  for _, row in ipairs(left > 0 and stale(base .. ':' .. lane, ARGV[3], left) or {}) do
    if left > 0 then
      found[#found + 1] = take_over(base, lane, consumer, row[1], row[4])
      left = left - 1
    end
  end
end
return found
