-- Deliver again what was given back, and what nobody renewed for a lease. ARGV: consumer, limit,
-- lease. Gives {lane, id, fields, claim, deliveries that do not count}; nil: no such queue.
local base, consumer, left = KEYS[1], ARGV[1], tonumber(ARGV[2])
local lease = ARGV[3]
local queue = settings(base)
if not queue then
  return nil
end
local found = {}
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  if left > 0 then
    local rows = redis.call('XPENDING', key, GROUP, 'IDLE', lease, '-', '+', left)
    local ids, claims = {}, {}
    for place, row in ipairs(rows) do
      ids[place] = row[1]
      claims[row[1]] = row[4] + 1
    end
    in_chunks(ids, function(...)
      for _, entry in ipairs(redis.call('XCLAIM', key, GROUP, consumer, lease, ...)) do
        local id = entry[1]
        found[#found + 1] = { lane, id, entry[2], claims[id], uncounted(base, lane, id) }
        left = left - 1
      end
    end)
  end
end
return found
