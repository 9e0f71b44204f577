-- Remove consumers that hold nothing: one by its name, or those idle for long. ARGV: name ('' for none),
-- milliseconds (if any). One that comes back all the same is created again by its next read.
local name, idle = ARGV[1], tonumber(ARGV[2] or FOR_EVER)
for _, lane in ipairs(queue and lanes(queue) or {}) do
  local key = base .. ':' .. lane
  for _, row in ipairs(grouped(key, 'XINFO', 'CONSUMERS', key, GROUP)) do
    local found = pairs_of(row)
    if found['pending'] == 0 and (found['name'] == name or found['idle'] > idle) then
      redis.call('XGROUP', 'DELCONSUMER', key, GROUP, found['name'])
    end
  end
end
return 1
