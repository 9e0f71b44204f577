-- Deliver certain messages out of turn. ARGV: consumer, the lease of holders whose name has none, then
-- place, lane and id of each; a delayed one has lane 'd' and id due~name. Returns the same as claim, each
-- with its place.
local consumer, lease = ARGV[1], tonumber(ARGV[2])
local found = {}

-- A group delivers in order; what is taken before its turn moves to a lane of its own.
local function adopt(fields)
  local key = base .. ':t'
  add(base, queue, 't', fields)
  local entry = grouped(key, 'XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 1, 'STREAMS', key, '>')[1][2][1]
  found[#found + 1] = { 't', entry[1], entry[2], 1, 0 }
end

local function take_delayed(id)
  local due, name = string.match(id, '^(%d+)~(%x+)$')
  due = tonumber(due)
  local first = due <= 0 and '-inf' or string.format('%.0f', due)
  local last = due >= LATEST and '+inf' or string.format('(%.0f', due + 1)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', base .. ':delayed', first, last)) do
    local _, fields, known = delayed_of(member)
    if known == name then
      adopt(fields)
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
  local by, count, idle = holder(key, id)
  if by then
    if idle >= lease_of(by, lease) then
      found[#found + 1] = take_over(base, lane, consumer, id, count)
    end
    return
  end
  local entry = redis.call('XRANGE', key, id, id)[1]
  if entry and is_behind(entry[1], delivered_up_to(key)) then
    adopt(entry[2])
    redis.call('XDEL', key, id)
  end
end

for at = 3, #ARGV, 3 do
  local before = #found
  if ARGV[at + 1] == 'd' then
    take_delayed(ARGV[at + 2])
  else
    take(ARGV[at + 1], ARGV[at + 2])
  end
  if #found > before then
    found[#found][6] = tonumber(ARGV[at])
  end
end
return found
