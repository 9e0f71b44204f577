-- End a pause: put the groups of the lanes back, and have every process read again.
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  if lane ~= 't' and redis.call('EXISTS', key) == 1 and group_id(key) == HIGHEST_ID then
    redis.call('XGROUP', 'SETID', key, GROUP, delivered_up_to(key))
  end
  redis.call('HDEL', base, 'paused:' .. lane)
end
if redis.call('HDEL', base, 'paused') == 1 then
  redis.call('HINCRBY', base, 'resumed', 1)
  ring(base)
end
return 1
