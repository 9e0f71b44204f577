-- Deliver again what was released, and what was not renewed within its holder's lease. ARGV: consumer,
-- limit, the lease of holders whose name has none. Returns {lane, id, fields, claim, deliveries that do
-- not count} for each; nil: no such queue.
local base, consumer, left = KEYS[1], ARGV[1], tonumber(ARGV[2])
local queue = settings(base)
if not queue then
  return nil
end
local found = {}
for _, lane in ipairs(lanes(queue)) do
  if left > 0 then
    for _, row in ipairs(stale(base .. ':' .. lane, ARGV[3], left)) do
      if left > 0 then
        found[#found + 1] = take_over(base, lane, consumer, row[1], row[4])
        left = left - 1
      end
    end
  end
end
return found
