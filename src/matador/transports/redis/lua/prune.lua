-- Remove consumers that hold nothing and have not been seen for long. ARGV: milliseconds. One that
-- comes back all the same is made again by its next read.
local base = KEYS[1]
local queue = settings(base)
for _, lane in ipairs(queue and lanes(queue) or {}) do
  local key = base .. ':' .. lane
  for _, row in ipairs(grouped(key, 'XINFO', 'CONSUMERS', key, GROUP)) do
    local found = {}
    for place = 1, #row, 2 do
      found[row[place]] = row[place + 1]
    end
    if found['pending'] == 0 and found['idle'] > tonumber(ARGV[1]) then
      redis.call('XGROUP', 'DELCONSUMER', key, GROUP, found['name'])
    end
  end
end
return 1
