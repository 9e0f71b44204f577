-- Shared by the scripts of exchanges and bindings. KEYS[1] is the hash with the number of the bindings,
-- which grows with every change. Beside it are hashes: ':exchanges' (name, type), ':bindings' (queue, JSON
-- list of exchange and pattern), ':temporary' (queue, milliseconds). A temporary queue has its milliseconds in
-- its own hash, too, and is there while its key ':used' is.
local routes = KEYS[1]

local function changed()
  -- Not from 1 on: after a server has lost everything, a number must not come again.
  redis.call('HSETNX', routes, 'number', string.format('%.0f', now()))
  redis.call('HINCRBY', routes, 'number', 1)
end

-- The bindings of a queue, whatever somebody may have written there.
local function bindings_of(name)
  local given = redis.call('HGET', routes .. ':bindings', name)
  local read, found = pcall(cjson.decode, given or '[]')
  local bindings = {}
  for _, one in ipairs(read and type(found) == 'table' and found or {}) do
    if type(one) == 'table' and type(one[1]) == 'string' and type(one[2]) == 'string' then
      bindings[#bindings + 1] = { one[1], one[2] }
    end
  end
  return bindings
end

local function save_bindings(name, bindings)
  if #bindings == 0 then
    redis.call('HDEL', routes .. ':bindings', name)
  else
    redis.call('HSET', routes .. ':bindings', name, cjson.encode(bindings))
  end
  changed()
end

local function has_expired(key)
  return redis.call('HEXISTS', key, 'expires') == 1 and redis.call('EXISTS', key .. ':used') == 0
end

-- Delete a queue with its bindings and messages.
local function drop(name, key)
  local gone = { key }
  for _, part in ipairs({ 'used', 'delayed', 'uncounted', 'bell', 'done', 'sealed', 't' }) do
    gone[#gone + 1] = key .. ':' .. part
  end
  for level = 0, HIGHEST do
    gone[#gone + 1] = key .. ':' .. level
  end
  redis.call('UNLINK', unpack(gone))
  redis.call('HDEL', routes .. ':temporary', name)
  if redis.call('HDEL', routes .. ':bindings', name) == 1 then
    changed()
  end
end
