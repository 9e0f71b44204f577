-- Pause a queue: put the groups of its lanes where nothing is new. Where they stood is stored first.
redis.call('HSET', base, 'paused', '1')
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  if lane ~= 't' then
    grouped(key, 'XPENDING', key, GROUP)
    local id = group_id(key)
    if id ~= HIGHEST_ID then
      redis.call('HSET', base, 'paused:' .. lane, id)
      redis.call('XGROUP', 'SETID', key, GROUP, HIGHEST_ID)
    end
  end
end
return 1
