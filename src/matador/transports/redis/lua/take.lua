-- Deliver chosen messages out of their turn. ARGV: consumer, lease, then lane and id, again and
-- again; lane 'd' for a delayed one, its id is due~place. Gives the same as claim; nil: no queue.
local base, consumer, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local queue = settings(base)
if not queue then
  return nil
end
local found = {}

-- A group delivers in order; what is taken before its turn moves to a lane of its own.
local function adopt(fields)
  local key = base .. ':t'
  redis.call('XADD', key, next_id(base, queue), unpack(fields))
  local entry = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 1, 'STREAMS', key, '>')[1][2][1]
  found[#found + 1] = { 't', entry[1], entry[2], 1, 0 }
end

local function is_behind(id, other)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then
    return tonumber(ms) > tonumber(other_ms)
  end
  return tonumber(seq) > tonumber(other_seq)
end

local function take_delayed(id)
  local due, place = string.match(id, '^(%d+)~(%d+)$')
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', base .. ':delayed', due, due)) do
    if string.sub(member, 1, 16) == place then
      adopt(cmsgpack.unpack(string.sub(member, 17))[2])
      redis.call('ZREM', base .. ':delayed', member)
      return
    end
  end
end

local function take(lane, id)
  local key = base .. ':' .. lane
  if redis.call('EXISTS', key) == 0 then
    return
  end
  local by, claim, idle = holder(key, id)
  if by then
    if by == NOBODY or idle >= lease then
      local entry = redis.call('XCLAIM', key, GROUP, consumer, 0, id)[1]
      if entry then
        found[#found + 1] = { lane, id, entry[2], claim + 1, uncounted(base, lane, id) }
      end
    end
    return
  end
  local entry = redis.call('XRANGE', key, id, id)[1]
  if entry and is_behind(id, group_of(key)['last-delivered-id']) then
    adopt(entry[2])
    redis.call('XDEL', key, id)
  end
end

for place = 3, #ARGV, 2 do
  if ARGV[place] == 'd' then
    take_delayed(ARGV[place + 1])
  else
    take(ARGV[place], ARGV[place + 1])
  end
end
return found
