-- Store messages with nothing but an id and a body. ARGV: id, body, id, body ... Returns 1, or
-- {index from 0, why} of those that were not stored.
local key, refused = base .. ':0', {}
for place = 1, #ARGV, 2 do
  local added = redis.pcall('XADD', key, next_id(base, queue), 'i', ARGV[place], 'b', ARGV[place + 1])
  if type(added) == 'table' then -- an error: an id is a text
    local added, why = pcall(add, base, queue, '0', { 'i', ARGV[place], 'b', ARGV[place + 1] })
    if not added then
      refused[#refused + 1] = { (place - 1) / 2, said(why) }
    end
  end
end
pcall(trim, base, queue)
return #refused == 0 and 1 or refused
