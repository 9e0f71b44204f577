-- Store messages whose id is not noted yet, and note it. ARGV: scope, batch, then as for send_full;
-- the first field's value is the id. Gives the same as send_full.
local base, scope, batch = KEYS[1], ARGV[1], tonumber(ARGV[2])
local queue = settings(base)
if not queue then
  return 0
end
if batch <= (tonumber(redis.call('HGET', base .. ':sealed', scope) or '-1') or -1) then
  return 1
end
local parts = base .. ':once:' .. scope
local notes = parts .. ':' .. ARGV[2]
redis.call('ZADD', parts, batch, ARGV[2])
local place, index, refused = 3, 0, {}
while place <= #ARGV do
  local count = tonumber(ARGV[place + 2])
  local fields = { unpack(ARGV, place + 3, place + 2 + count) }
  local noted = redis.pcall('SADD', notes, fields[2])
  local stored, why = not failed(noted), noted
  if noted == 1 then
    stored, why = pcall(put, base, queue, tonumber(ARGV[place]), ARGV[place + 1], fields)
    if not stored then
      redis.call('SREM', notes, fields[2])
    end
  end
  if not stored then
    refused[#refused + 1] = { index, said(why) }
  end
  place, index = place + 3 + count, index + 1
end
pcall(trim, base, queue)
return #refused == 0 and 1 or refused
