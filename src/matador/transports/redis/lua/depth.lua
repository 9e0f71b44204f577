-- How many messages are ready, delayed, in flight.
tidy(base, queue)
local stored, held, released = 0, 0, 0
for _, lane in ipairs(lanes(queue)) do
  local key = base .. ':' .. lane
  stored = stored + redis.call('XLEN', key)
  local pending = grouped(key, 'XPENDING', key, GROUP)
  held = held + pending[1]
  for _, row in ipairs(pending[4] or {}) do
    if row[1] == NOBODY then
      released = released + tonumber(row[2])
    end
  end
end
local time = now()
local due = redis.call('ZCOUNT', base .. ':delayed', '-inf', time)
local delayed = redis.call('ZCARD', base .. ':delayed') - due
local done = redis.call('ZCARD', base .. ':done')
return { math.max(0, stored - held - done + released + due), delayed, held - released }
