-- End a pause: put the groups of the lanes back, and have every process read again.
-- A full server refuses the first write that needs memory, and no later one. This one needs none: the
-- messages must get out.
redis.call('HDEL', base, '')
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  if lane ~= 't' and redis.call('EXISTS', key) == 1 and group_id(key) == HIGHEST_ID then
    redis.call('XGROUP', 'SETID', key, GROUP, delivered_up_to(key))
  end
  redis.call('HDEL', base, 'paused:' .. lane)
end
if redis.call('HDEL', base, 'paused') == 1 then
  local before = number(redis.call('HGET', base, 'resumed'), 0, FOR_EVER - 1) or 0
  redis.call('HSET', base, 'resumed', before + 1)
  ring(base)
end
return 1
