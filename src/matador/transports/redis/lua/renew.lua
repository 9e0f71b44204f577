-- Hold deliveries for longer. ARGV: lane, consumer, then id and claim of each. Returns for each: 1, or 0
-- if it is lost. Counts no delivery.
local key, consumer = KEYS[1] .. ':' .. ARGV[1], ARGV[2]
local kept, ids = {}, {}
local there = redis.call('EXISTS', key) == 1
for place = 3, #ARGV, 2 do
  local by, claim
  if there then
    by, claim = holder(key, ARGV[place])
  end
  if by == consumer and claim == tonumber(ARGV[place + 1]) then
    kept[#kept + 1] = 1
    ids[#ids + 1] = ARGV[place]
  else
    kept[#kept + 1] = 0
  end
end
in_chunks(ids, function(...)
  local command = { 'XCLAIM', key, GROUP, consumer, 0, ... }
  command[#command + 1] = 'JUSTID'
  redis.call(unpack(command))
end)
return kept
