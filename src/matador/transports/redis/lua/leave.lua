-- Remove a consumer that holds nothing. ARGV: consumer.
local base, consumer = KEYS[1], ARGV[1]
local queue = settings(base)
for _, lane in ipairs(queue and lanes(queue) or {}) do
  local key = base .. ':' .. lane
  if #grouped(key, 'XPENDING', key, GROUP, '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', key, GROUP, consumer)
  end
end
return 1
