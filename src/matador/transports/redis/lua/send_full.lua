-- Store messages. ARGV: scope and batch of send_once ('' for send), then for each: delay, priority,
-- number of fields, fields (the first one is the id). Returns 1, or {index from 0, why} of those that
-- were not stored.
local scope, batch = ARGV[1], tonumber(ARGV[2])
local notes
if scope ~= '' then
  if batch <= (tonumber(redis.call('HGET', base .. ':sealed', scope) or '-1') or -1) then
    return 1
  end
  notes = base .. ':once:' .. scope .. ':' .. ARGV[2]
  redis.call('ZADD', base .. ':once:' .. scope, batch, ARGV[2])
end

local function store(fields, delay, priority)
  if notes and redis.call('SADD', notes, fields[2]) == 0 then
    return
  end
  local stored, why = pcall(put, base, queue, delay, priority, fields)
  if not stored then
    if notes then
      redis.call('SREM', notes, fields[2])
    end
    error(why, 0)
  end
end

local place, index, refused = 3, 0, {}
while place <= #ARGV do
  local count = tonumber(ARGV[place + 2])
  local fields = { unpack(ARGV, place + 3, place + 2 + count) }
  local stored, why = pcall(store, fields, tonumber(ARGV[place]), ARGV[place + 1])
  if not stored then
    refused[#refused + 1] = { index, said(why) }
  end
  place, index = place + 3 + count, index + 1
end
pcall(trim, base, queue)
return #refused == 0 and 1 or refused
