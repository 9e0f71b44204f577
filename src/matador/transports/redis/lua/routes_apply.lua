-- Declare exchanges, bindings and temporary queues. ARGV, each list after its length: exchanges (name, type),
-- bindings (queue, exchange, pattern), temporary queues (name, key, milliseconds), other queues (name, key).
-- Returns the types that the exchanges have.
local place, types = 1, {}

local function each(width, act)
  local count = tonumber(ARGV[place])
  for at = place + 1, place + count * width, width do
    act(unpack(ARGV, at, at + width - 1))
  end
  place = place + 1 + count * width
end

each(2, function(name, type)
  if redis.call('HSETNX', routes .. ':exchanges', name, type) == 1 then
    changed()
  end
  types[#types + 1] = redis.call('HGET', routes .. ':exchanges', name)
end)
each(3, function(name, exchange, pattern)
  local bindings = bindings_of(name)
  for _, one in ipairs(bindings) do
    if one[1] == exchange and one[2] == pattern then
      return
    end
  end
  bindings[#bindings + 1] = { exchange, pattern }
  save_bindings(name, bindings)
end)
each(3, function(name, key, expires)
  if has_expired(key) then -- nobody has noticed yet: it comes back empty
    local bindings = bindings_of(name)
    drop(name, key)
    save_bindings(name, bindings)
  end
  redis.call('HSET', key, 'expires', expires)
  redis.call('SET', key .. ':used', '1', 'PX', expires)
  redis.call('HSET', routes .. ':temporary', name, expires)
end)
each(2, function(name, key)
  if redis.call('HDEL', routes .. ':temporary', name) == 1 then
    redis.call('HDEL', key, 'expires')
    redis.call('UNLINK', key .. ':used')
  end
end)
return types
